"""The Q learner's update twice more, in PyTorch: what `train_step.py` measures ours against.

`batched` is written as well as we can: distinct chunks are embedded once per network and update, rows are sorted by
length and encoded in buckets of the size that is fastest on this machine, all environments advance together, and only
chosen pairs carry gradients. `episodes` has the shape of the published code: every episode is played alone by a Python
environment that embeds its chunks with the online and with the target tower and each state by itself; the chosen pairs
are encoded again with gradients. Both start from our parameters and read our token ids; neither imports JAX.

    python benchmarks/torch_loops.py FOLDER KIND    # started by train_step.py: requests on stdin, answers on stdout
"""

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Params = dict[str, Tensor]
BUCKETS = (1024, 4096, 16384)  # tokens encoded at once; the fastest is taken


class TextTowers:
    """Two encoders (BERT's shape); a state is the packed tokens of the question and the taken chunks."""

    def __init__(self, about: dict, pools: dict[str, Tensor]):
        self.encoder, self.pools = about["encoder"], pools
        self.window, self.sep_id, self.scale = about["chunk_window"], about["sep_id"], about["scale"]
        self.bucket: int | None = BUCKETS[0]  # None pads all rows to the longest and encodes them at once

    def actions(self, params: Params, ids: Tensor) -> Tensor:
        """Vectors of chunks, [n, dim]."""
        return self._encode(params, "action/", self.pools["chunk_tokens"][ids], self.pools["chunk_lengths"][ids])

    def states(self, params: Params, questions: Tensor, taken: list[Tensor]) -> Tensor:
        """Vectors of states, [n, dim]; `taken[i]` are pool ids [.., t] of one group of states, in document order."""
        groups, start = [], 0
        for ids in taken:
            groups.append(self._pack(questions[start : start + len(ids)], ids))
            start += len(ids)
        width = max(tokens.shape[1] for tokens, _ in groups)
        tokens = torch.cat([F.pad(tokens, (0, width - tokens.shape[1])) for tokens, _ in groups])
        return self._encode(params, "state/", tokens, torch.cat([lengths for _, lengths in groups]))

    def _pack(self, questions: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """`[CLS] question [SEP] chunk [SEP] ..` without gaps."""
        parts = [self.pools["question_tokens"][questions]]
        lengths = [self.pools["question_lengths"][questions]]
        for column in taken.unbind(1):
            tokens, length = self.pools["chunk_tokens"][column], self.pools["chunk_lengths"][column] - 1
            width = min(tokens.shape[1] - 1, self.window)
            body, length = tokens[:, 1 : 1 + width].clone(), length.clamp(max=width)
            body.scatter_(1, length[:, None] - 1, self.sep_id)  # a cut chunk ends in [SEP] too
            parts.append(body)
            lengths.append(length)
        gap = torch.cat([torch.arange(p.shape[1]) >= n[:, None] for p, n in zip(parts, lengths, strict=True)], dim=1)
        order = torch.argsort(gap.to(torch.uint8), dim=1, stable=True)
        total = torch.stack(lengths).sum(0)
        return torch.cat(parts, dim=1).gather(1, order)[:, : int(total.max())], total

    def _encode(self, params: Params, tower: str, tokens: Tensor, lengths: Tensor) -> Tensor:
        if self.bucket is None:
            return self._encode_rows(params, tower, tokens[:, : int(lengths.max())], lengths) / self.scale
        order = torch.argsort(lengths)
        sizes = lengths[order].tolist()
        vectors, end = [], len(sizes)
        while end:  # longest first, so that every bucket's width is known when it is opened
            start = max(0, end - max(1, self.bucket // sizes[end - 1]))
            rows = order[start:end]
            vectors.append(self._encode_rows(params, tower, tokens[rows, : sizes[end - 1]], lengths[rows]))
            end = start
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return torch.cat(vectors[::-1])[back] / self.scale

    def _encode_rows(self, params: Params, tower: str, tokens: Tensor, lengths: Tensor) -> Tensor:
        p = lambda name: params[tower + name]  # noqa: E731

        def norm(x: Tensor, name: str) -> Tensor:
            return F.layer_norm(x, x.shape[-1:], p(f"{name}/scale"), p(f"{name}/bias"), self.encoder["layer_norm_eps"])

        n, width = tokens.shape
        valid = torch.arange(width) < lengths[:, None]
        x = F.embedding(tokens, p("word_embeddings/embedding"))
        x = norm(x + p("position_embeddings/embedding")[:width] + p("type_embeddings/embedding")[0], "embeddings_norm")
        mask = None if bool(valid.all()) else valid[:, None, None, :]
        approximate = "tanh" if self.encoder["activation"] == "gelu_tanh" else "none"
        for i in range(self.encoder["num_layers"]):
            qkv = F.linear(x, p(f"layer_{i}/qkv/kernel"), p(f"layer_{i}/qkv/bias"))
            query, key, value = qkv.view(n, width, 3, self.encoder["num_heads"], -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).reshape(x.shape)
            mixed = F.linear(mixed, p(f"layer_{i}/attention_output/kernel"), p(f"layer_{i}/attention_output/bias"))
            x = norm(x + mixed, f"layer_{i}/attention_norm")
            inner = F.linear(x, p(f"layer_{i}/intermediate/kernel"), p(f"layer_{i}/intermediate/bias"))
            outer = F.gelu(inner, approximate=approximate)
            outer = F.linear(outer, p(f"layer_{i}/output/kernel"), p(f"layer_{i}/output/bias"))
            x = norm(x + outer, f"layer_{i}/output_norm")
        weights = valid.to(x.dtype)[..., None]
        return ((x * weights).sum(1) / weights.sum(1)).float()


class LatentTowers:
    """A small pre-norm transformer over frozen vectors, and an MLP on chunk vectors."""

    bucket: int | None = None

    def __init__(self, about: dict, pools: dict[str, Tensor]):
        self.latent = about["latent"]
        # Standardised once: both are constants of the run.
        self.chunks = (pools["chunk_vectors"] - pools["mean"]) / pools["std"]
        self.questions = (pools["question_vectors"] - pools["mean"]) / pools["std"]

    def actions(self, params: Params, ids: Tensor) -> Tensor:
        """Vectors of chunks, [n, dim]."""
        x = F.gelu(_dense(self.chunks[ids], params, "action/params/hidden"), approximate="tanh")
        return _dense(x, params, "action/params/out")

    def states(self, params: Params, questions: Tensor, taken: list[Tensor]) -> Tensor:
        """Vectors of states, [n, dim]; `taken[i]` are pool ids [.., t] of one group of states, in document order."""
        vectors, start = [], 0
        for ids in taken:
            vectors.append(self._states(params, questions[start : start + len(ids)], ids))
            start += len(ids)
        return torch.cat(vectors)

    def _states(self, params: Params, questions: Tensor, taken: Tensor) -> Tensor:
        width, t = self.latent["width"], taken.shape[1]
        angles = torch.arange(t)[:, None] * 100.0 ** (-torch.arange(width // 2) / (width // 2))
        code = torch.cat([angles.sin(), angles.cos()], dim=1)
        asked = _dense(self.questions[questions], params, "state/params/question_in")[:, None]
        x = torch.cat([asked, _dense(self.chunks[taken], params, "state/params/chunk_in") + code], dim=1)
        for i in range(self.latent["num_layers"]):
            name = f"state/params/layer_{i}"
            qkv = _dense(_norm(x, params, f"{name}/attention_norm"), params, f"{name}/attention/qkv")
            query, key, value = qkv.view(len(x), t + 1, 3, self.latent["num_heads"], -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape)
            x = x + _dense(mixed, params, f"{name}/attention/out")
            inner = F.gelu(_dense(_norm(x, params, f"{name}/mlp_norm"), params, f"{name}/mlp_in"), approximate="tanh")
            x = x + _dense(inner, params, f"{name}/mlp_out")
        out = _dense(_norm(x[:, 0], params, "state/params/final_norm"), params, "state/params/out")
        return self.latent["dim"] ** -0.5 * out


def _dense(x: Tensor, params: Params, name: str) -> Tensor:
    return F.linear(x, params[f"{name}/kernel"], params[f"{name}/bias"])


def _norm(x: Tensor, params: Params, name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], params[f"{name}/scale"], params[f"{name}/bias"], 1e-6)


def from_flax(arrays: dict[str, np.ndarray]) -> Params:
    """Our parameters by path: kernels as `F.linear` takes them, query, key and value joined into one matrix."""
    found: Params = {}
    for path, array in arrays.items():
        folder, leaf = path.rsplit("/", 1)
        if folder.endswith(("/key", "/value")):
            continue
        parts = [array]
        if folder.endswith("/query"):
            base = folder.removesuffix("query")
            parts, folder = [arrays[f"{base}{name}/{leaf}"] for name in ("query", "key", "value")], f"{base}qkv"
        if leaf == "kernel":  # linen keeps heads as an axis of their own: [in, heads, width] and [heads, width, out]
            out = folder.endswith("attention/out")
            parts = [(p.reshape(-1, p.shape[-1]) if out else p.reshape(len(p), -1)).T for p in parts]
        elif leaf == "bias":
            parts = [part.reshape(-1) for part in parts]
        found[f"{folder}/{leaf}"] = tensor(np.ascontiguousarray(np.concatenate(parts)))
    return found


class Loop(ABC):
    """The part of the update that both loops share: returns, loss, optimiser, target network."""

    def __init__(self, folder: Path, about: dict):
        arrays = dict(np.load(folder / "model.npz", allow_pickle=False))
        pools = {name: tensor(arrays[name]) for name in arrays if not name.startswith("params/")}
        start = from_flax({k.removeprefix("params/"): v for k, v in arrays.items() if k.startswith("params/")})
        self.about, self.learner, self.env = about, about["learner"], about["env"]
        self.towers = (TextTowers if about["mode"] == "text" else LatentTowers)(about, pools)
        self.online = {name: x.clone().requires_grad_() for name, x in start.items()}
        self.target = {name: x.clone() for name, x in start.items()}
        c = self.learner
        self.optimiser = torch.optim.AdamW(
            self.online.values(), c["rate"], (c["adam_b1"], c["adam_b2"]), c["adam_eps"], c["weight_decay"], fused=True
        )
        dim = about["dim"]
        self.frequencies = self.env["theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        self.frequencies = self.frequencies.float()

    @abstractmethod
    def loss(self, sample: dict[str, Tensor], reencode: bool, actions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(loss, Q of the chosen pairs [batch, T]); `actions` are taken where given, else drawn."""

    def update(self, sample: dict[str, Tensor], reencode: bool) -> None:
        """One step of the optimiser and of the target network."""
        loss, _ = self.loss(sample, reencode)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.online.values(), self.learner["clip_norm"])
        self.optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.values()), list(self.online.values()), self.learner["tau"])

    def positions(self, indices: Tensor, taken: Tensor, lengths: Tensor) -> Tensor:
        """Relative positions (Q-RAG, eq. 6) of the chunks [batch, m], given taken document indices [batch, t]."""
        bounds = torch.cat([torch.zeros_like(lengths)[:, None], taken, lengths[:, None]], dim=1)
        interval = torch.searchsorted(taken.contiguous(), indices.contiguous(), right=True)
        start, stop = bounds.gather(1, interval), bounds.gather(1, interval + 1)
        fraction = (indices - start) / (stop - start).clamp(min=1)
        return interval * self.env["delta"] + self.env["ell"] * fraction

    def rotation(self, rho: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [..., dim / 2]."""
        angles = rho[..., None] * self.frequencies
        return angles.cos(), angles.sin()

    def policy(self, q: Tensor, free: Tensor) -> Tensor:
        """Actions [batch] of the Boltzmann policy with exploration."""
        soft = torch.softmax(q.masked_fill(~free, -torch.inf) / self.learner["temperature"], dim=1)
        uniform = free / free.sum(1, keepdim=True)
        epsilon = self.learner["epsilon"]
        return torch.multinomial((1 - epsilon) * soft + epsilon * uniform, 1)[:, 0]

    def value(self, q: Tensor, free: Tensor) -> Tensor:
        """Soft values [batch] (eq. 4)."""
        alpha = self.learner["temperature"]
        return alpha * torch.logsumexp(q.masked_fill(~free, -torch.inf) / alpha, dim=1)

    def reward(self, gold: Tensor, taken: Tensor, action: Tensor) -> Tensor:
        """Reward [batch] of an action: once at completion with the penalty, and for every gold chunk."""
        is_gold = gold.gather(1, action[:, None])[:, 0]
        before = gold.gather(1, taken).sum(1)
        num_gold = gold.sum(1)
        completes = (before + is_gold.long() == num_gold) & (before < num_gold)
        bonus = 0.5 + 0.5 * num_gold / (taken.shape[1] + 1)
        return completes * bonus + is_gold * self.env["fact_reward"]

    def returns(self, rewards: list[Tensor], values: list[Tensor]) -> Tensor:
        """G_t = r_t + gamma * ((1 - lambda) * V_{t+1} + lambda * G_{t+1}), 0 after the last step; [batch, T]."""
        gamma, lambda_ = self.learner["gamma"], self.learner["lambda_"]
        found = [rewards[-1]]
        for reward, value in zip(rewards[-2::-1], values[::-1], strict=True):
            found.append(reward + gamma * ((1 - lambda_) * value + lambda_ * found[-1]))
        return torch.stack(found[::-1], dim=1)


def scores(states: Tensor, rows: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """<s, R(rho) a> for states [batch, dim] and rows [batch, .., dim], without building rotated rows."""
    cos, sin = rotation
    shape = (len(states), *[1] * (rows.ndim - 2), -1)
    s0, s1 = states[:, 0::2].reshape(shape), states[:, 1::2].reshape(shape)
    a0, a1 = rows[..., 0::2], rows[..., 1::2]
    return (cos * (s0 * a0 + s1 * a1) + sin * (s1 * a0 - s0 * a1)).sum(-1)


class BatchedLoop(Loop):
    """All environments at once; distinct chunks once."""

    def loss(self, sample: dict[str, Tensor], reencode: bool, actions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Gradients flow through the chosen pairs alone: of the rollout, or of a second encoding of them."""
        chunks, questions, distinct = sample["chunks"], sample["questions"], sample["distinct"]
        with torch.no_grad():
            target_rows = F.embedding(chunks, self.towers.actions(self.target, distinct))
        with torch.set_grad_enabled(not reencode):
            table = self.towers.actions(self.online, distinct)
        rows = F.embedding(chunks, table.detach())
        pool_ids = distinct[chunks]
        taken = chunks.new_zeros(len(chunks), 0)
        free = sample["valid"].clone()
        rewards, values, chosen, states, turns, picked = [], [], [], [], [], []
        for t in range(self.env["num_steps"]):
            ids = pool_ids.gather(1, taken)
            with torch.set_grad_enabled(not reencode):
                state = self.towers.states(self.online, questions, [ids])
            with torch.no_grad():
                rho = self.positions(sample["indices"], sample["indices"].gather(1, taken), sample["lengths"])
                rotation = self.rotation(rho)
                q = scores(state.detach(), rows, rotation)
                if t:
                    valued = self.towers.states(self.target, questions, [ids])
                    values.append(self.value(scores(valued, target_rows, rotation), free))
                action = self.policy(q, free) if actions is None else actions[:, t]
                rewards.append(self.reward(sample["gold"], taken, action))
            each = torch.arange(len(action))
            turns.append(tuple(x[each, action] for x in rotation))
            chosen.append(chunks[each, action])
            states.append(state)
            picked.append(ids)
            free[each, action] = False
            taken = torch.sort(torch.cat([taken, action[:, None]], dim=1), dim=1)[0]
        row_ids = torch.stack(chosen, dim=1)
        if reencode:
            distinct_chosen, inverse = torch.unique(row_ids, return_inverse=True)
            table, row_ids = self.towers.actions(self.online, distinct[distinct_chosen]), inverse
            asked = questions.repeat(len(picked))
            states = self.towers.states(self.online, asked, picked).view(len(picked), len(chunks), -1).unbind(0)
        rotation = tuple(torch.stack(part, dim=1).flatten(0, 1) for part in zip(*turns, strict=True))
        q_tm1 = scores(
            torch.stack(list(states), dim=1).flatten(0, 1), F.embedding(row_ids, table).flatten(0, 1), rotation
        )
        q_tm1 = q_tm1.view(row_ids.shape)
        return (q_tm1 - self.returns(rewards, values)).square().mean(), q_tm1


class EpisodeLoop(Loop):
    """Every episode alone, its chunks embedded by both networks; the gradient pass takes all chosen pairs at once."""

    def loss(self, sample: dict[str, Tensor], reencode: bool, actions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The chosen pairs are always encoded again."""
        self.towers.bucket = None
        played = [self._play(sample, i, actions) for i in range(len(sample["chunks"]))]
        g_tm1 = torch.cat([episode["returns"] for episode in played])
        steps = range(self.env["num_steps"])
        taken = [torch.cat([episode["taken"][t] for episode in played]) for t in steps]
        states = self.towers.states(self.online, sample["questions"].repeat(len(steps)), taken)
        states = states.view(len(steps), len(played), -1).transpose(0, 1).flatten(0, 1)
        rows = self.towers.actions(self.online, torch.cat([episode["chosen"] for episode in played]))
        rotation = self.rotation(torch.cat([episode["rho"] for episode in played]))
        q_tm1 = scores(states, rows, rotation).view(g_tm1.shape)
        return (q_tm1 - g_tm1).square().mean(), q_tm1

    @torch.no_grad()
    def _play(self, sample: dict[str, Tensor], i: int, actions: Tensor | None) -> dict:
        """One episode of environment `i`."""
        ids = sample["distinct"][sample["chunks"][i]]
        question, gold = sample["questions"][i : i + 1], sample["gold"][i : i + 1]
        indices, lengths = sample["indices"][i : i + 1], sample["lengths"][i : i + 1]
        online_rows, target_rows = self.towers.actions(self.online, ids), self.towers.actions(self.target, ids)
        free, picks = sample["valid"][i : i + 1].clone(), []
        found: dict[str, list] = {"taken": [], "chosen": [], "rho": [], "rewards": [], "values": []}
        for t in range(self.env["num_steps"]):
            taken = torch.tensor([sorted(picks)], dtype=torch.long)
            rho = self.positions(indices, indices.gather(1, taken), lengths)
            rotation = self.rotation(rho)
            q = scores(self.towers.states(self.online, question, [ids[taken]]), online_rows[None], rotation)
            if t:
                valued = self.towers.states(self.target, question, [ids[taken]])
                found["values"].append(self.value(scores(valued, target_rows[None], rotation), free))
            action = self.policy(q, free) if actions is None else actions[i : i + 1, t]
            found["rewards"].append(self.reward(gold, taken, action))
            found["taken"].append(ids[taken])
            found["chosen"].append(ids[action])
            found["rho"].append(rho[:, int(action)])
            free[0, action] = False
            picks.append(int(action))
        columns = {name: torch.cat(found[name]) for name in ("chosen", "rho")}
        return columns | {"taken": found["taken"], "returns": self.returns(found["rewards"], found["values"])}


def tensor(array: np.ndarray) -> Tensor:
    """On the device that the loops run on; ids as PyTorch indexes with them."""
    found = torch.from_numpy(array).to(torch.get_default_device())
    return found.long() if found.dtype == torch.int32 else found


def read_samples(path: Path) -> list[dict[str, Tensor]]:
    """The batches of one case, without the padding of the distinct rows."""
    arrays = np.load(path, allow_pickle=False)
    stacked = {name: tensor(arrays[name]) for name in arrays if name != "actions"}
    samples = [{name: x[i] for name, x in stacked.items()} for i in range(len(stacked["chunks"]))]
    return [s | {"distinct": s["distinct"][: int(s["chunks"].max()) + 1]} for s in samples]


def check(loop: Loop, sample: dict[str, Tensor], actions: Tensor, reencode: bool) -> dict:
    """Loss, Q values and gradient norm for given actions, at a target network that differs from the online one."""
    with torch.no_grad():
        torch._foreach_mul_(list(loop.target.values()), loop.about["target_factor"])
    loss, q = loop.loss(sample, reencode, actions)
    loop.optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.get_total_norm([x.grad for x in loop.online.values() if x.grad is not None])
    with torch.no_grad():
        torch._foreach_div_(list(loop.target.values()), loop.about["target_factor"])
    return {"loss": loss.item(), "grad_norm": norm.item(), "q": q.tolist()}


def measure(loop: Loop, samples: list[dict[str, Tensor]], steps: int, reencode: bool, bf16: bool) -> float:
    """Seconds of one update, mean of `steps`."""
    _synchronise()
    start = time.perf_counter()
    for step in range(steps):
        with torch.autocast(torch.get_default_device().type, torch.bfloat16, enabled=bf16):
            loop.update(samples[step % len(samples)], reencode)
    _synchronise()
    return (time.perf_counter() - start) / steps


def _synchronise() -> None:
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()


def choose_bucket(loop: Loop, sample: dict[str, Tensor], reencode: bool) -> int | None:
    """Takes the bucket size with which an update is fastest (the text towers of the batched loop have one)."""
    if loop.towers.bucket is None:
        return None
    seconds = {}
    for loop.towers.bucket in BUCKETS:
        measure(loop, [sample], 1, reencode, False)
        seconds[loop.towers.bucket] = measure(loop, [sample], 1, reencode, False)
    loop.towers.bucket = min(seconds, key=seconds.__getitem__)
    return loop.towers.bucket


def matmul_peak(shapes: list[list[int]]) -> dict[str, float]:
    """GFLOP/s of float32 products [m, k] x [k, n], best of several."""
    return {"x".join(map(str, shape)): _matmul_rate(*shape) for shape in shapes}


def _matmul_rate(m: int, k: int, n: int) -> float:
    a, b = torch.randn(m, k), torch.randn(k, n)
    best, flops = float("inf"), 2 * m * k * n
    for _ in range(6 if flops > 4e9 else 100):
        start = time.perf_counter()
        torch.mm(a, b)
        _synchronise()
        best = min(best, time.perf_counter() - start)
    return round(flops / best / 1e9, 1)


def main() -> None:
    """Answers requests, one JSON line each, until stdin ends."""
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    if torch.cuda.is_available():
        torch.set_default_device("cuda")
    about = json.loads((folder / "about.json").read_text())
    loop = (BatchedLoop if kind == "batched" else EpisodeLoop)(folder, about)
    buckets: dict[str, int | None] = {}
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["do"] == "peak":
            answer: dict = {"peak": matmul_peak(ask["shapes"]), "torch": torch.__version__}
        else:
            case, reencode = ask["case"], about["cases"][ask["case"]]["reencode"]
            samples = read_samples(folder / f"{case}.npz")
            if ask["do"] == "check":
                actions = tensor(np.load(folder / f"{case}.npz", allow_pickle=False)["actions"])
                answer = check(loop, samples[0], actions, reencode)
            else:
                if case not in buckets:
                    buckets[case] = choose_bucket(loop, samples[0], reencode)
                loop.towers.bucket = buckets[case]
                measure(loop, samples, 1, reencode, ask["bf16"])  # not counted, as ours
                seconds = measure(loop, samples, ask["steps"], reencode, ask["bf16"])
                answer = {"seconds": seconds, "bucket": buckets[case]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
