"""Trains the tagger that comes with the package, and writes it.

    python -m benchmarks.hichunk.tagger_default DATA  # wikitext2/ and scisumm/; about 20 minutes on 2 cores

It learns from the papers of CL-SciSumm that are only there to train (`other_papers`) and from two of three WikiText-2
articles (the first of every three is left out), with their headings removed. What is left out, and all cited papers, it
has never seen: the F1 that this prints of them is that of the file. (Trained on plain headings too it found less
without headings, F1 .341 and .351.)

On one machine the same vectors give the same bytes. Another processor sums in another order: vectors differ in their
last bits, and weights, which are kept in 16 bits, in some of theirs; F1 of what is left out then differs by less than
.01.
"""

from pathlib import Path

from benchmarks.common import ROOT, arguments, minilm
from benchmarks.hichunk.points import Vectors, judged
from qrag_jax.data.corpora.headed_documents import HeadedDocument, read_headed
from qrag_jax.measures.boundary_scores import score_points
from qrag_jax.models.tagger.predict import tagged_points
from qrag_jax.models.tagger.tagger import load_tagger, save_tagger
from qrag_jax.names import View
from qrag_jax.train.learners.tagger import fit_tagger

FILE = ROOT / "qrag_jax" / "models" / "tagger" / "default" / "tagger.npz"
LEFT_OUT = 3  # one article of so many
VIEWS: tuple[View, ...] = ("removed", "plain")


def training_documents(data: Path, view: View = "removed") -> dict[str, list[HeadedDocument]]:
    articles = read_headed(f"wikitext2:{data / 'wikitext2'}", view)
    papers = read_headed(f"scisumm:{data / 'scisumm' / 'other_papers.jsonl.gz'}", view)
    return {"articles": [one for number, one in enumerate(articles) if number % LEFT_OUT], "papers": papers}


def unseen_documents(data: Path, view: View) -> dict[str, list[HeadedDocument]]:
    return {
        "articles": read_headed(f"wikitext2:{data / 'wikitext2'}", view)[::LEFT_OUT],
        "papers": read_headed(f"scisumm:{data / 'scisumm' / 'cited_papers.jsonl.gz'}", view),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("data", type=Path, help="folder with wikitext2/ and scisumm/")
    parser.add_argument("--out", type=Path, default=FILE, help="file to write (default: that of the package)")
    parser.add_argument("--vectors", type=Path, metavar="FILE.npz", help="keep sentence vectors there, and take them")
    args = parser.parse_args()
    documents = [one for own in training_documents(args.data).values() for one in own]
    unseen = {view: unseen_documents(args.data, view) for view in VIEWS}
    everything = [*documents, *(one for domains in unseen.values() for own in domains.values() for one in own)]
    embedder = minilm()
    vectors = Vectors(embedder, {text for one in everything for text in one.text.texts()}, args.vectors)
    fitted = fit_tagger(documents, vectors, embedder.fingerprint, "minilm")
    save_tagger(fitted.tagger, args.out)
    tagger = load_tagger(args.out)  # as it is kept
    print(f"{args.out}: {args.out.stat().st_size:,} bytes, L2 {fitted.strength}, threshold {tagger.threshold:.3f}")
    for view, domains in unseen.items():
        for name, own in domains.items():
            score = score_points(judged(own, tagged_points(tagger, vectors)))
            f1 = score.f1_any
            print(
                f"{name}, {view}: F1 {f1.mean:.3f} [{f1.low:.3f}, {f1.high:.3f}], level 1 {score.f1[1]:.3f}, level 2 "
                f"{score.f1[2]:.3f}; {f1.n} documents, {score.n_points:,} points"
            )


if __name__ == "__main__":
    main()
