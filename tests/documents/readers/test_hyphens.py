import pytest

from qrag_jax.documents.readers.pdf import DIVIDED, joined, words_of


@pytest.mark.parametrize(
    ("divided", "elsewhere", "whole"),
    [
        ("exam|ple", "an example", "example"),
        ("Exam|ple", "an example", "Example"),
        ("chat|optimized", "a chat-optimized model", "chat-optimized"),
        ("multi|agent", "multi-agent, not multiagent: both", "multiagent"),  # the whole word comes first
        ("conversation|centric", "a conversation that is centric", "conversation-centric"),
        ("conversation|centric", "a conversation", "conversation-centric"),
        ("develop|ment", "to develop", "development"),  # a second part as short as this is an ending
        ("under|standing", "to stand under, standing", "understanding"),
        ("well-kno|wn", "known", "well-known"),
        ("state-of-the|art", "the art", "state-of-the-art"),
        ("hypo|tenuse", "", "hypotenuse"),  # nothing tells: 39 of 41 were divided
        ("2019|2020", "", "2019-2020"),
        ("GPT|4", "", "GPT-4"),
        ("Jean|Paul", "", "Jean-Paul"),
        ("ABBRE|VIATION", "", "ABBREVIATION"),
        ("Öko|nomie", "", "Ökonomie"),
        ("one | two", "", "one - two"),
        ("end|", "", "end-"),
        ("|start", "", "- start"),
    ],
)
def test_the_words_of_a_document_tell_what_a_hyphen_at_the_end_of_a_line_is(divided, elsewhere, whole):
    text = divided.replace("|", DIVIDED)
    assert joined(text, words_of([text, elsewhere])) == whole


def test_divided_words_are_no_words_of_the_document():
    assert words_of([f"exam{DIVIDED}ple of a well-known One"]) == {"of", "a", "well-known", "well", "known", "one"}


def test_a_text_without_divided_words_stays_as_it_is():
    text = "A well-known text.\n- a list\n"
    assert joined(text, words_of([text])) == text
