"""What an aggregator hears is no function of a row: same messages for neighbouring tables,
whatever the plan asks.
"""

from pathlib import Path

import pytest
from PIL import Image

from homo_dp.config.schema import Config
from tests.processes.hostile import Hostile, job

COLUMNS = {"ward": {"levels": ["A", "B", "C"]}, "age": {"bounds": [0, 100], "missing": "middle"}}
BASE = [f"{n},{'ABC'[n % 3]},{20 + n},{n % 2}" for n in range(1, 41)]
NEIGHBOURS = {
    "one on ward D": [*BASE, "41,D,33,1"],
    "one fewer": BASE[:-1],
    "no label": [*BASE[:-1], "40,A,60,"],
    "an unknown class": [*BASE[:-1], "40,A,60,7"],
    "an age in words": [*BASE[:-1], "40,A,old,0"],
    "an infinite age": [*BASE[:-1], "40,A,inf,0"],
    "no age, no ward": [*BASE[:-1], "40,,,0"],
}
STRICT = {
    "ward": {"levels": ["A", "B", "C"], "missing": "error"},
    "age": {"bounds": [0, 100], "missing": "error"},
}
ASKED = [
    "rows",
    "classes",
    "means",
    "variances",
    "second_moments",
    "histograms",
    "levels",
    "missing",
    "bounds",
]
QUESTIONS: dict[str, Config] = {
    "none: a job as any": job(COLUMNS, train__rounds=2),
    "is anybody on ward D?": job({"age": COLUMNS["age"]}, data__label="ward", data__classes=["A", "B", "C"],
                                 data__drop=["y"]),
    "is D missing?": job(STRICT, data__missing_values=["D", ""]),
    "is anybody 60?": job(STRICT, data__missing_values=["60"]),
    "is a ward a number?": job({"ward": {"bounds": [0, 1]}}, data__use=["ward"]),
    "is a ward a date?": job({"ward": {"date": ["2000-01-01", "2001-01-01"]}}, data__use=["ward"]),
    "is an age another date?": job({"age": {"date": ["2000-01-01", "2001-01-01"], "format": "%d%m%Y"}},
                                   data__use=["age"], data__missing_values=["60"]),
    "is the label a number?": job({"age": COLUMNS["age"]}, data__label="ward", data__target_bounds=[0, 1],
                                  data__drop=["y"], model__name="linear_regression"),
    "is anybody in class 7?": job(COLUMNS, data__classes=[7, 8]),
    "does a class hold everybody?": job(COLUMNS, data__classes=[0, 7]),
    "what do 40 rows cost?": job(COLUMNS, privacy__noise_multiplier=1.0, train__batch_size=40),
    "how many steps are 10**15 epochs?": job(COLUMNS, train__local_epochs=1e15, train__batch_size=40),
    "is delta above 1 / 40?": job(COLUMNS, privacy__delta=0.0247),
    "every statistic": job(COLUMNS, privacy__mechanism="statistics", statistics__ask=ASKED),
    "every statistic of rows that must not be missing": job(STRICT, privacy__mechanism="statistics",
                                                            statistics__ask=ASKED),
    "metrics of every round": job(COLUMNS, metrics__release="noised", metrics__every=1, train__rounds=2),
    "metrics of classes that nobody has": job(COLUMNS, data__classes=[7, 8], metrics__release="noised"),
}  # fmt: skip


@pytest.fixture
def hostile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Hostile:
    return Hostile(tmp_path, monkeypatch, capsys)


def csv(rows: list[str]) -> str:
    return "\n".join(["id,ward,age,y", *rows]) + "\n"


PUBLIC = {"data.counts": "public"}
DECLARED = {"data.rows": {"a": 40}, "party.caps.epsilon": 20.0}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("own", [PUBLIC, DECLARED], ids=["public", "declared"])
def test_neighbouring_tables_sound_the_same(
    hostile: Hostile, question: str, own: dict[str, object]
) -> None:
    """Where true counts are public, for tables of as many rows."""
    expected = hostile.hear(csv(BASE), QUESTIONS[question], own)
    assert expected.messages
    for name, rows in NEIGHBOURS.items():
        if own is DECLARED or len(rows) == len(BASE):
            assert (
                hostile.hear(csv(rows), QUESTIONS[question], own).messages == expected.messages
            ), name


@pytest.mark.parametrize("question", ["none: a job as any", "what do 40 rows cost?"])
@pytest.mark.parametrize(
    "rows", [BASE, BASE[:-1], NEIGHBOURS["one on ward D"]], ids=["40", "39", "41"]
)
def test_a_count_that_is_neither_declared_nor_public_is_in_no_run(
    hostile: Hostile, question: str, rows: list[str]
) -> None:
    """Its updates would show it: their noise is solved for, and divided by, the number of rows."""
    heard = hostile.hear(csv(rows), QUESTIONS[question], {})
    assert [message[0] for message in heard.messages] == ["join", "refused"]
    assert heard.words == ["rows"]
    assert "data.rows.a: is not declared" in str(heard.error)
    assert "data.counts: public" in str(heard.error)


@pytest.mark.parametrize(
    ("rows", "delta"), [(BASE, 0.1), (NEIGHBOURS["one on ward D"], 0.1)], ids=["40", "41"]
)
def test_a_delta_of_the_plan_cannot_test_the_count(
    hostile: Hostile, rows: list[str], delta: float
) -> None:
    """A party that kept its own delta too large is in no run, whatever delta a plan has: it is
    its operator's error.
    """
    heard = hostile.hear(
        csv(rows), QUESTIONS["is delta above 1 / 40?"], {"privacy.delta": delta, **PUBLIC}
    )
    assert heard.messages == []
    assert "privacy.delta=0.1: must be below 1 / rows" in str(heard.error)


@pytest.mark.parametrize(
    "question", ["none: a job as any", "is anybody on ward D?", "what do 40 rows cost?"]
)
def test_a_declared_count_stands_for_the_rows(hostile: Hostile, question: str) -> None:
    expected = hostile.hear(csv(BASE), QUESTIONS[question], DECLARED)
    assert [message[0] for message in expected.messages][:2] == ["join", "update"]
    for rows in (BASE[:-1], NEIGHBOURS["one on ward D"], NEIGHBOURS["no label"]):
        assert hostile.hear(csv(rows), QUESTIONS[question], DECLARED).messages == expected.messages


def test_the_operator_hears_which_row_was_left_out(hostile: Hostile) -> None:
    heard = hostile.hear(
        csv(NEIGHBOURS["one on ward D"]), QUESTIONS["is anybody on ward D?"], PUBLIC
    )
    assert "1 rows do not fit" in heard.screen
    assert "40 are trained on" in heard.screen
    assert "row 41: 'D' is not one of classes=['A', 'B', 'C']" in heard.screen


MISTAKES = {
    "column 'age': 40 of 40 values (100 %) are outside the declared bounds": [
        f"{n},{'ABC'[n % 3]},{2000 + n},{n % 2}" for n in range(1, 41)
    ],
    "column 'ward': 40 of 40 values (100 %) are none of the declared categories": [
        f"{n},{'abc'[n % 3]},{20 + n},{n % 2}" for n in range(1, 41)
    ],
    "label 'y': all 40 rows are of one class": [
        f"{n},{'ABC'[n % 3]},{20 + n},1" for n in range(1, 41)
    ],
    "id column 'id': 39 rows have the id of an earlier row": [
        f"7{row[row.index(',') :]}" for row in BASE
    ],
}


@pytest.mark.parametrize("finding", MISTAKES)
def test_a_likely_mistake_in_a_table_is_a_line_for_its_operator_alone(
    hostile: Hostile, finding: str
) -> None:
    question = QUESTIONS["none: a job as any"]
    expected = hostile.hear(csv(BASE), question, PUBLIC)
    assert "the aggregator is not told" not in expected.screen
    heard = hostile.hear(csv(MISTAKES[finding]), question, PUBLIC)
    assert finding in heard.screen
    assert heard.messages == expected.messages


def test_a_party_of_whom_no_row_fits_ends_as_any_other(hostile: Hostile) -> None:
    heard = hostile.hear(csv(BASE), QUESTIONS["is anybody in class 7?"], PUBLIC, to_end=True)
    assert heard.error is None
    assert "40 rows do not fit" in heard.screen
    assert (hostile.folder / "1" / "out" / "model").exists()


@pytest.mark.parametrize("question", ["none: a job as any", "is anybody on ward D?"])
@pytest.mark.parametrize("neighbour", ["no label", "an unknown class", "an age in words"])
def test_rows_against_the_partys_own_word_are_its_operators_error(
    hostile: Hostile, question: str, neighbour: str
) -> None:
    """Found before the party says that it is there, so no plan can ask for it."""
    own = {"data.columns": COLUMNS, "data.classes": [0, 1]}
    heard = hostile.hear(csv(NEIGHBOURS[neighbour]), QUESTIONS[question], own)
    assert heard.messages == []
    assert "row 40" in str(heard.error)


HEADER = "id,ward,age,y,user,side\n"
PEOPLE = [f"{row},u{number % 7},train" for number, row in enumerate(BASE)]
UNNAMED = {
    "no user": [*PEOPLE[:-1], f"{BASE[-1]},,train"],
    "another side of the split": [*PEOPLE[:-1], f"{BASE[-1]},u1,valid"],
    "a row that is cut off": [*PEOPLE[:-1], "40,A,60"],
    "an age that is no text": [*PEOPLE[:-1], "40,A,\udcff,0,u1,train"],
}
NAMED = {"data.user_column": "user", "data.split_column": "side", "data.drop": ["user", "side"],
         "data.test_fraction": None}  # fmt: skip


@pytest.mark.parametrize("unnamed", UNNAMED)
def test_a_row_that_cannot_be_used_is_its_operators_error(hostile: Hostile, unnamed: str) -> None:
    """It was refused after the party had joined, which told the aggregator that it is there."""
    table = HEADER + "\n".join(UNNAMED[unnamed]) + "\n"
    heard = hostile.hear(table, QUESTIONS["none: a job as any"], {**NAMED, **DECLARED})
    assert heard.messages == []
    assert "40" in str(heard.error) or "the text is not UTF-8" in str(heard.error)


@pytest.mark.parametrize("unnamed", ["no user", "another side of the split"])
def test_a_row_that_cannot_be_used_any_more_is_left_out(hostile: Hostile, unnamed: str) -> None:
    """A table that changes after the party has joined says no more than any other."""
    asked, own = QUESTIONS["none: a job as any"], {**NAMED, **DECLARED}
    table, changed = (HEADER + "\n".join(rows) + "\n" for rows in (PEOPLE, UNNAMED[unnamed]))
    expected = hostile.hear(table, asked, own)
    assert [message[0] for message in expected.messages[:2]] == ["join", "update"], expected.error
    heard = hostile.hear(table, asked, own, later=changed)
    assert heard.messages == expected.messages
    assert "1 rows do not fit" in heard.screen


@pytest.mark.parametrize("unreadable", ["a row that is cut off", "an age that is no text"])
def test_a_table_that_cannot_be_read_any_more_is_not_refused(
    hostile: Hostile, unreadable: str
) -> None:
    """One row decided whether the aggregator got `refused: plan`."""
    table, changed = (HEADER + "\n".join(rows) + "\n" for rows in (PEOPLE, UNNAMED[unreadable]))
    asked, own = QUESTIONS["none: a job as any"], {**NAMED, **DECLARED}
    heard = hostile.hear(table, asked, own, later=changed)
    assert [message[0] for message in heard.messages] == ["join"]
    assert str(heard.error).startswith("TableChanged: ")


@pytest.mark.parametrize("image", ["damaged.png", "larger.png", "nowhere.png"])
def test_an_image_that_cannot_be_used_any_more_is_left_out(
    hostile: Hostile, tmp_path: Path, image: str
) -> None:
    """One image ended the process, which the aggregator saw by its silence."""
    images = tmp_path / "images"
    images.mkdir()
    for number in range(40):
        Image.new("L", (8, 8), number).save(images / f"{number}.png")
    Image.new("L", (9, 9)).save(images / "larger.png")
    (images / "damaged.png").write_text("no image")
    asked = job({}, data__image={"shape": [1, 8, 8]}, data__classes=[0, 1])
    table = "file_name,y\n" + "".join(f"{number}.png,{number % 2}\n" for number in range(40))

    def own() -> dict[str, object]:
        annotations = hostile.folder / str(hostile.runs + 1) / "table.csv"
        return {**DECLARED, "data.files": {"a": f"{images}#{annotations}"}}

    expected = hostile.hear(table, asked, own())
    assert [message[0] for message in expected.messages] == ["join", "update"], expected.error
    lines = table.splitlines(keepends=True)
    for later in ([*lines, f"{image},1\n"], [lines[0], f"{image},1\n", *lines[1:]]):
        heard = hostile.hear(table, asked, own(), later="".join(later))
        assert heard.messages == expected.messages, heard.error
        assert "1 rows do not fit" in heard.screen
        assert image in heard.screen
    for none in (lines[0], f"{lines[0]}{image},1\n"):
        heard = hostile.hear(table, asked, own(), later=none)
        assert heard.messages == expected.messages, heard.error
    assert hostile.hear(f"{table}{image},1\n", asked, own()).messages == []


EMPTY = {"no rows": [], "test rows only": [f"{row},u1,test" for row in BASE]}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("empty", EMPTY)
def test_a_party_without_rows_sounds_as_any_other(
    hostile: Hostile, question: str, empty: str
) -> None:
    """An empty table was refused after the party had joined: one row more was seen for free."""
    asked = QUESTIONS[question].model_copy(deep=True)
    own = {**NAMED, "data.user_column": None, **DECLARED}
    if "y" in asked.data.drop:
        own["data.drop"] = ["user", "side", "y"]
    expected = hostile.hear(HEADER + "\n".join(PEOPLE) + "\n", asked, own)
    heard = hostile.hear(HEADER + "".join(f"{row}\n" for row in EMPTY[empty]), asked, own)
    assert heard.messages == expected.messages, heard.error


def test_more_rows_than_delta_allows_are_found_before_joining(hostile: Hostile) -> None:
    own = {"privacy.delta": 0.02, **PUBLIC}
    many = [*BASE, *(f"{n},A,33,1" for n in range(41, 52))]
    heard = hostile.hear(csv(many), QUESTIONS["none: a job as any"], own)
    assert heard.messages == []
    assert "privacy.delta=0.02: must be below 1 / rows" in str(heard.error)


@pytest.mark.parametrize("name", ["a", "a.", "b", ""])
def test_the_party_column_of_a_row_tells_nothing(hostile: Hostile, name: str) -> None:
    """A row of another party, of two spellings, or of none, in a table that several parties share."""
    own = {"data.party_column": "side", "data.drop": ["user", "side"], **DECLARED}
    asked = QUESTIONS["none: a job as any"]
    rows = [row.replace("train", "a") for row in PEOPLE]
    expected = hostile.hear(HEADER + "\n".join(rows) + "\n", asked, own)
    assert [message[0] for message in expected.messages[:2]] == ["join", "update"], expected.error
    changed = "\n".join([*rows[:-1], f"{BASE[-1]},u1,{name}"])
    heard = hostile.hear(HEADER + "\n".join(rows) + "\n", asked, own, later=HEADER + changed)
    assert heard.messages == expected.messages, heard.error
    changed = HEADER + "\n".join(row.replace("train", "b") for row in PEOPLE)
    heard = hostile.hear(HEADER + "\n".join(rows) + "\n", asked, own, later=changed)
    assert heard.messages == expected.messages, heard.error


def test_columns_in_any_order_are_agreed_to(hostile: Hostile) -> None:
    """A message sorts keys: the order of the declaration travels beside them, and holds for a
    party's own columns.
    """
    asked = job({"ward": COLUMNS["ward"], "age": COLUMNS["age"]})
    for own in ({}, {"data.columns": {"age": COLUMNS["age"], "ward": COLUMNS["ward"]}}):
        heard = hostile.hear(csv(BASE), asked, {**own, **PUBLIC})
        assert [message[0] for message in heard.messages] == ["join", "update"], heard.error
    other = {"ward": COLUMNS["ward"], "age": {"bounds": [0, 99], "missing": "middle"}}
    assert hostile.hear(csv(BASE), asked, {"data.columns": other, **PUBLIC}).words == ["columns"]
