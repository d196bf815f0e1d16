from dataclasses import replace

from support.answers import READINGS, make_reader, make_record, make_task
from support.scripted_models import make_judge

from qrag_jax.eval.answers.answer_rows import answer_rows, bound_readings
from qrag_jax.eval.answers.measure_answers import MeasureOptions
from qrag_jax.eval.answers.report import format_answers
from qrag_jax.llm.judges import Agreement
from qrag_jax.llm.scripted import failed


def lines_of(rows):
    return format_answers(rows).split("\n")


def test_facts_stand_beside_answers():
    readings = [*READINGS, *bound_readings(make_task(), [make_record(query, (1,)) for query in range(3)])]
    lines = lines_of(answer_rows(make_task(), readings, make_reader()).rows)
    assert lines[0].startswith("tiny: answers of reader, at most 32 tokens, prompt ")
    header, trained, bm25, gold, nothing = (line.split("  ") for line in lines[1:6])
    columns = [cell.strip() for cell in header if cell]
    assert columns[:7] == ["method", "protocol", "chunks", "fact EM", "fact F1", "answer EM", "answer F1"]
    assert columns[7:] == ["asked", "failed", "cut", "tokens read", "written"]
    cells = [cell.strip() for cell in trained if cell]
    assert cells[:5] == ["trained", "fixed", "4", ".667", ".444"] and cells[5].startswith(".667 .") and cells[7] == "3"
    assert [line[0] for line in (bm25, gold, nothing)] == ["BM25", "gold chunks (bound)", "no chunks"]
    assert lines[6] == "After each answer score: 95% interval over the questions. F1 by the convention of SQuAD."
    assert lines[7] == "" and len(lines) == 8


def test_what_failed_is_said():
    reader = make_reader(lambda name, answer: failed("429") if name == "Ada" else answer)
    rows = answer_rows(make_task(answers=[("Rome",), ("Oslo",), ()]), READINGS, reader).rows
    text = format_answers(rows)
    assert "Means leave out failed calls" in text and "without a reference answer: 1 questions" in text
    (row,) = [line for line in lines_of(rows) if line.startswith("trained")]
    assert row.split()[-5:-2] == ["2", "1", "0"]


def test_judges_and_their_agreement_are_named():
    options = MeasureOptions(("f1", "judge"), convention="hotpot")
    judges = [make_judge(), make_judge(model="other")]
    (row,) = answer_rows(make_task(), READINGS[:3], make_reader(), judges=judges, measures=options).rows
    text = format_answers([row])
    assert "judge: judged by letters, other; of 3 things, raw agreement 1.00, Krippendorff's alpha 1.00." in text
    assert "convention of HotpotQA" in text and "judged" in lines_of([row])[1]
    flat = replace(row, agreement={"judge": Agreement(1.0, None, 3)})
    assert "alpha not defined" in format_answers([flat])


def test_a_score_of_nothing_is_a_dash():
    options = MeasureOptions(("f1", "judge"))
    judge = make_judge(reply=lambda prompt, own: "?")
    (row,) = answer_rows(make_task(), READINGS[:3], make_reader(), judges=[judge], measures=options).rows
    text = format_answers([row])
    assert "judge: 3 answers could not be scored; its means leave them out." in text and "  -  " in text


def test_hashes_are_shown_by_their_first_digits():
    (row,) = answer_rows(make_task(), READINGS[:1], make_reader(model=f"local:{'ab' * 32}:float32")).rows
    heading = lines_of([row])[0]
    assert "answers of local:abababababab:float32, at most 32 tokens" in heading
    assert heading.endswith(f"prompt {row.prompt_sha256[:12]}")


def test_every_task_has_a_block():
    (row,) = answer_rows(make_task(), READINGS[:3], make_reader()).rows
    assert format_answers([row, replace(row, task="other")]).count("answers of reader") == 2
