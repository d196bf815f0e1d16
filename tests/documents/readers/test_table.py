import pytest

from qrag_jax.documents.readers.table import read_table
from qrag_jax.types import InputError


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ('country,fee\nFrance,7 EUR\n"Spain, main",8\n', "country: France\nfee: 7 EUR\n\ncountry: Spain, main\nfee: 8"),
        ("land;preis\nFrankreich;7,50\nSpanien;8,10", "land: Frankreich\npreis: 7,50\n\nland: Spanien\npreis: 8,10"),
        ("sep=|\nname|v\nx|1\n", "name: x\nv: 1"),
        ("a\tb\nx\ty\n", "a: x\nb: y"),
        ("name\nJo\nAl\n", "name: Jo\n\nname: Al"),
        ("Report of May,,\n,,\nname,age,town\nJo,31,Rome\n", "Report of May\n\nname: Jo\nage: 31\ntown: Rome"),
        ("1,2\n3,4\n", "1, 2\n\n3, 4"),  # no head
        ("Jo,31\nAl,7\n", "Jo, 31\n\nAl, 7"),
        ("state,2018,2020\nOhio,7.5,R+2\n", "state: Ohio\n2018: 7.5\n2020: R+2"),
        ("city,2014_fires\nRome,12\n", "city: Rome\n2014_fires: 12"),
        ("day,men,women,men\n1,2,3,4\n", "day: 1\nmen: 2\nwomen: 3\nmen: 4"),
        (",name\n0,Jo\n", "0\nname: Jo"),  # the first column has none
        ("name,age\nJo,,extra\n\n ,\nAl,7\n", "name: Jo\nextra\n\nname: Al\nage: 7"),
        ('name,note\nJo,"two\nlines"\n', "name: Jo\nnote: two\nlines"),
        ('item,size\n"5 inch,pipe\ny,z\n', 'item: "5 inch\nsize: pipe\n\nitem: y\nsize: z'),  # a mark never closed
        ("name,age\r\nJo,31\r\n", "name: Jo\nage: 31"),
        ("\ufeffname,age\nJo,31", "name: Jo\nage: 31"),
        ("name,age\n", "name, age"),
        ("name,name\nJo,Al\n", "name, name\n\nJo, Al"),
    ],
)
def test_rows_are_paragraphs_with_their_heads(raw, text):
    assert read_table(raw.encode()).text == text


def test_tabs_are_kept_as_delimiters_beside_commas():
    raw = b"name\tnote, long\nJo\ta, b\nAl\tc, d\n"
    assert read_table(raw, delimiter="\t").text == "name: Jo\nnote, long: a, b\n\nname: Al\nnote, long: c, d"


def test_a_long_head_is_written_whole_once():
    head = "question " * 20
    text = read_table(f"{head},b\nx,y\n".encode()).text
    assert (
        text.startswith(f"{head.strip()}, b\n\nquestion ")
        and text.endswith(": x\nb: y")
        and text.count("question") < 33
    )


def test_encodings_are_as_of_text():
    assert read_table("name,town\nJörg,Köln\n".encode("cp1252"), "cp1252").text == "name: Jörg\ntown: Köln"
    assert read_table("name,town\nJörg,Köln\n".encode(), "cp1252").text == "name: Jörg\ntown: Köln"
    found = read_table(b"name,town\n" + b"Jo,Rome\n" * 20 + b"Al,\xff\n")
    assert found.text.endswith("town: \ufffd") and found.left_out == {"undecodable bytes": 1}
    with pytest.raises(InputError, match="empty document"):
        read_table(b" \n")


def test_years_are_heads_above_short_numbers():
    assert read_table(b"town,2019,2020\nRome,5,6\nOslo,7,8\n").text.startswith("town: Rome\n2019: 5\n2020: 6")
