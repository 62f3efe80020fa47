"""Who holds what: from the config to the tables of every party of a federation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from homo_dp.config.addresses import masked
from homo_dp.core.errors import DataError
from homo_dp.data.columns import Level
from homo_dp.data.csv_dialect import COMMAS, CsvForm
from homo_dp.data.declared import image_encoding, table_encoding
from homo_dp.data.embedded import EmbeddedSet, load_embedded
from homo_dp.data.encoding import Encoding, short
from homo_dp.data.images import is_image_file, read_images
from homo_dp.data.readers import csv_form, give_back_memory, header, read_chunks, read_table
from homo_dp.data.rows import Rows, Table, encode_rows, gather
from homo_dp.data.splitting import ALONE, Share, dealt_by_place, hold_out, split_rows
from homo_dp.data.unexpected_values import Strays
from homo_dp.data.values import PLAIN, NumberForm

if TYPE_CHECKING:
    import pandas as pd

    from homo_dp.config.data import DataConfig
    from homo_dp.config.schema import Config

ImageShape = tuple[int, int, int]  # channels, height, width

__all__ = ["Federation", "PartyData", "Table", "iter_tables", "load_federation"]


@dataclass(frozen=True)
class PartyData:
    """The rows of one party; `declared_rows` is the public row count, if one was declared."""

    name: str
    train: Table
    test: Table | None
    declared_rows: int | None = None
    left_out: int = 0  # rows of its file that do not fit; the tables hold the others
    misfit: str | None = None  # the first row that does not fit, for the owner of the table


@dataclass(frozen=True)
class Federation:
    """All parties that this process may see, and the public description they share."""

    parties: dict[str, PartyData]
    encoding: Encoding
    classes: tuple[Level, ...] | None
    public_test: Table | None
    input_shape: tuple[int, ...]
    # of the users with training rows, by number, where there is a user column
    user_names: np.ndarray | None = None
    strays: Strays = field(default_factory=Strays)  # of the tables that are trained on
    notes: tuple[str, ...] = ()  # findings for the owners of the tables

    @property
    def users(self) -> int | None:
        """The number of users with training rows, where there is a user column."""
        return None if self.user_names is None else len(self.user_names)


def load_federation(
    config: Config,
    seed: int | None = None,
    only: str | None = None,
    *,
    leave_out: bool = False,
    image_shape: ImageShape | None = None,
) -> Federation:
    """Read, encode and split the configured tables; `only` keeps one party (and reads only its file
    if it has one).

    A row that does not fit the columns is refused. With `leave_out` (a party in a process of its
    own) it is left out, and a party may have no rows at all.

    Args:
        config: names the tables and describes their columns.
        seed: decides which rows are held out; None: that of the config.
        only: the one party to keep.
        leave_out: leave out rows that do not fit, each by itself.
        image_shape: of the images of the party when it started; with `leave_out`, one of another
            shape or that cannot be read is such a row.

    Returns:
        The parties' tables, and what is public about them.

    Raises:
        DataError: a table cannot be read, does not fit the config, or has no rows.

    Guarantees:
        - the seed decides which rows are held out and how one table is split, nothing else;
        - one row more or less in a table changes nothing for any other row: not its numbers, its
          user, its party or whether it is held out (embedded sets are public and exempt);
        - with `leave_out`, whether an error is raised follows from the config, the columns and
          whether the file can be read as a table;
        - nothing is fitted: bounds, levels and classes are those of the config.
    """
    seed = config.train.seed if seed is None else seed
    if config.data.embedded is not None and not config.data.files:
        encoding, held = _embedded(config, seed, _Reading(leave_out, image_shape))
    else:
        how = _Reading(leave_out, image_shape)
        encoding, held = _from_files(config, seed, only, how)
    names = [one.share.party for one in held]
    if only is not None and only not in names and leave_out and held:
        nobody, rows = np.arange(0), held[0]
        held.append(_Held(Share(only, nobody, nobody), rows.rows, rows.test))
    elif only is not None and only not in names:
        raise DataError(f"party {only!r} has no rows; the parties are {short(names)}")
    held = [one for one in held if only in (None, one.share.party)]
    if not leave_out:  # whether a party has rows at all depends on rows
        _check(config.data, held, names)
    parties, users = _finish(config.data, held)
    public = _together(list(parties.values())) if config.data.public_test else None
    return Federation(
        parties,
        encoding,
        encoding.classes,
        public,
        encoding.input_shape,
        users,
        _strays_of(held),
        tuple(dict.fromkeys(note for one in held for note in (*one.rows.notes, *one.test.notes))),
    )


def party_encoding(config: Config, party: str, image_shape: ImageShape | None = None) -> Encoding:
    """The encoding of one party's table, from the config and the names of its columns; no row is
    looked at. Images have the shape of the config, else `image_shape`, else that of the file.
    """
    data = config.data
    if data.embedded is not None and not data.files:
        return _embedded_encoding(config)[1]
    if not data.files:
        raise DataError(
            "data.files is empty; give {party: path}, or data.embedded: breast_cancer to try it out"
        )
    path = data.files.get(party) or next(iter(data.files.values()))
    return file_encoding(config, path, image_shape)


def encoding_of(config: Config) -> Encoding:
    """The encoding of all parties' tables, from the config and the names of the first one's
    columns.
    """
    return party_encoding(config, next(iter(config.data.files), ""))


@dataclass(frozen=True)
class Scored:
    """How the files to score are written, and where values that the model does not know are
    counted.
    """

    form: CsvForm = COMMAS
    numbers: NumberForm = PLAIN
    strays: Strays | None = None


AS_TRAINED = Scored()


def iter_tables(
    path: str | Path, encoding: Encoding, rows: int = 50_000, how: Scored = AS_TRAINED
) -> Iterator[Table]:
    """A table or image file in pieces, for a model that is already trained; labels only where
    the column is there.
    """
    source, label = masked(str(path)), encoding.label.name
    if is_image_file(path):
        images = read_images(path, label)
        for at in range(0, len(images.frame), rows):
            features = encoding.encode_images(images.pixels[at : at + rows], source, start=at)
            yield _scored(features, images.frame.iloc[at : at + rows], encoding, source, how)
        return
    for frame in read_chunks(path, rows, how.form):
        yield table_to_score(frame, encoding, source, how)


def table_to_score(
    frame: pd.DataFrame, encoding: Encoding, source: str, how: Scored = AS_TRAINED
) -> Table:
    """Rows as a trained model reads them, with its own classes; labels only where the column is
    there.
    """
    features = encoding.encode(frame, source, how.numbers, how.strays)
    return _scored(features, frame, encoding, source, how)


@dataclass(frozen=True)
class _Held:
    """One party's share, with the sources it points into."""

    share: Share
    rows: Rows
    test: Rows


@dataclass(frozen=True)
class _Reading:
    """How the rows of a file are read (`load_federation`)."""

    leave_out: bool
    image_shape: ImageShape | None


def _embedded(config: Config, seed: int, how: _Reading) -> tuple[Encoding, list[_Held]]:
    bundled, encoding, config = _embedded_encoding(config)
    source = f"embedded {bundled.name}"
    test = _test_path(config.data)
    rows = encode_rows(
        bundled.frame, None, encoding, config.data, source, public=True, leave_out=how.leave_out
    )
    tests = None if test is None else _load(test, encoding, config.data, how, test=True)
    return encoding, [
        _Held(share, rows, tests or rows) for share in split_rows(config.data, rows, tests, seed)
    ]


def _embedded_encoding(config: Config) -> tuple[EmbeddedSet, Encoding, Config]:
    bundled, data = load_embedded(config.data.embedded or ""), config.data
    fill = {
        "user_column": data.user_column or bundled.user_column,
        "columns_from": data.columns_from or bundled.name,
    }
    config = config.model_copy(update={"data": data.model_copy(update=fill)})
    names = list(bundled.frame.columns)
    return (
        bundled,
        table_encoding(config, names, f"embedded {bundled.name}", bundled.image_shape),
        config,
    )


def _from_files(
    config: Config, seed: int, only: str | None, how: _Reading
) -> tuple[Encoding, list[_Held]]:
    data = config.data
    if not data.files:
        raise DataError(
            "data.files is empty; give {party: path}, or data.embedded: breast_cancer to try it out"
        )
    if only is not None and data.one_table is None and only in data.files:
        encoding = file_encoding(config, data.files[only], how.image_shape)
        return encoding, [_party_file(data, only, data.files[only], encoding, seed, how)]
    encoding = file_encoding(config, next(iter(data.files.values())), how.image_shape)
    if data.one_table is not None:
        test = _test_path(data)
        rows = _load(data.one_table, encoding, data, how, test=False)
        tests = None if test is None else _load(test, encoding, data, how, test=True)
        shares = split_rows(data, rows, tests, seed, leave_out=how.leave_out)
        if [share.party for share in shares] == [ALONE]:
            shares = [Share(next(iter(data.files)), shares[0].train, shares[0].test)]
        return encoding, [_Held(share, rows, tests or rows) for share in shares]
    for path in data.files.values():
        if not is_image_file(path):
            # each party's own columns, as it checks them in a process of its own
            file_encoding(config, path)
    held = [
        _party_file(data, party, path, encoding, seed, how) for party, path in data.files.items()
    ]
    if isinstance(data.test_file, str):
        shared = _load(data.test_file, encoding, data, how, test=True)
        held = _deal_test(data, held, shared, seed)
    return encoding, held


def _party_file(
    data: DataConfig, party: str, path: str, encoding: Encoding, seed: int, how: _Reading
) -> _Held:
    """One party with its own file; its test rows are its own too, unless one test file serves
    everybody.
    """
    rows = _load(path, encoding, data, how, test=False)
    everything = np.arange(len(rows))
    if isinstance(data.test_file, dict) and party in data.test_file:
        test = _load(data.test_file[party], encoding, data, how, test=True)
        return _Held(Share(party, everything, np.arange(len(test))), rows, test)
    if data.test_file is not None:
        return _Held(Share(party, everything, everything[:0]), rows, rows)
    if data.split_column is not None:
        (share,) = split_rows(data, rows, None, seed)
    else:
        share = hold_out(data, rows, party, everything, seed)
    # Raw cells stay for the rows that predictions repeat: those of a CSV file are several times its
    # tensors.
    train, test = rows.at(share.train, cells=False), rows.at(share.test)
    del rows
    give_back_memory()
    return _Held(Share(party, np.arange(len(train)), np.arange(len(test))), train, test)


def _deal_test(data: DataConfig, held: list[_Held], test: Rows, seed: int) -> list[_Held]:
    """Rows of a test file for everybody go to the parties, each to one, so that each is predicted
    once: public rows in order, private ones each by its own place.

    In order, one row more would move others to another party, whose released figures count its
    own rows.
    """
    everything = np.arange(len(test))
    if data.public_test:
        parts = np.array_split(everything, len(held))
    else:
        parts = dealt_by_place(test, everything, len(held), seed)
    pairs = zip(held, parts, strict=True)
    return [
        _Held(Share(one.share.party, one.share.train, part), one.rows, test) for one, part in pairs
    ]


def _test_path(data: DataConfig) -> str | None:
    if isinstance(data.test_file, dict):
        raise DataError(
            "data.test_file names a file per party, but the training rows are one table; give one "
            "path"
        )
    return data.test_file


def file_encoding(config: Config, path: str, image_shape: ImageShape | None = None) -> Encoding:
    """The encoding of one file by the config; of a table only the header is read."""
    image = config.data.image
    shape = image.shape if image is not None else None
    if is_image_file(path):
        found = shape or image_shape or read_images(path, config.data.label).shape
        return image_encoding(config, found)
    return table_encoding(config, header(path, csv_form(config.data)), masked(path), shape)


def _load(path: str, encoding: Encoding, data: DataConfig, how: _Reading, *, test: bool) -> Rows:
    leave_out = how.leave_out
    if is_image_file(path):
        images = read_images(path, data.label, how.image_shape if leave_out else None)
        if not test and data.split_column is None and images.holds_test:
            raise DataError(f"{path}: its x_test would be trained on; say data.split_column=split")
        rows = encode_rows(images.frame, images.pixels, encoding, data, path, leave_out=leave_out)
        return replace(
            rows, left_out=rows.left_out + images.left_out, misfit=images.misfit or rows.misfit
        )
    frame = read_table(path, csv_form(data), may_be_empty=leave_out)
    return encode_rows(frame, None, encoding, data, masked(path), leave_out=leave_out)


def _strays_of(held: list[_Held]) -> Strays:
    """What did not fit the description in the tables that are trained on, each counted once."""
    found = Strays()
    for strays in {id(one.rows.strays): one.rows.strays for one in held}.values():
        found.add(strays.rows, strays.columns)
    return found


def _check(data: DataConfig, held: list[_Held], names: list[str]) -> None:
    for one in held:
        if len(one.share.train) == 0:
            raise DataError(
                f"{one.rows.source}: party {one.share.party!r} has no training rows (of "
                f"{len(one.rows)} in the file); leave the party out or give it rows"
            )
    strangers = sorted(set(data.rows) - set(names))
    if strangers and len(held) == len(names):
        raise DataError(f"data.rows.{strangers[0]} names no party; the parties are {short(names)}")


def _finish(data: DataConfig, held: list[_Held]) -> tuple[dict[str, PartyData], np.ndarray | None]:
    """Tables of all parties: rows of one source become views of one tensor, users are numbered
    across parties.
    """
    train_views = _views([(one.rows, one.share.train) for one in held])
    test_views = _views([(one.test, one.share.test) for one in held])
    columns = _common_columns([one.test for one in held])
    users, user_names = _user_numbers(held)
    frames: dict[int, pd.DataFrame] = {}  # parties of one table share it
    parties = {}
    for number, one in enumerate(held):
        (features, labels), (test_features, test_labels) = train_views[number], test_views[number]
        train_users, test_users = users[number] if users else (None, None)
        test = None
        if len(one.share.test):
            if id(one.test) not in frames:
                raw = one.test.frame
                frames[id(one.test)] = raw if list(raw.columns) == columns else raw[columns]
            frame = frames[id(one.test)]
            if not np.array_equal(one.share.test, np.arange(len(frame))):
                frame = frame.iloc[one.share.test]
            frame = frame.set_axis(one.share.test)  # positions in their source
            test = Table(test_features, test_labels, frame, test_users)
        # a target, to its public bounds
        within = labels.clamp(-1, 1) if labels.is_floating_point() else labels
        train = Table(features, within, None, train_users)
        name = one.share.party
        misfit = one.rows.misfit or one.test.misfit
        parties[name] = PartyData(name, train, test, data.rows.get(name), one.rows.left_out, misfit)
    return parties, (
        user_names[: 1 + max((int(pair[0].max()) for pair in users if len(pair[0])), default=-1)]
        if users
        else None
    )


def _views(wanted: list[tuple[Rows, np.ndarray]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    groups: dict[int, list[int]] = {}
    for number, (rows, _) in enumerate(wanted):
        groups.setdefault(id(rows), []).append(number)
    views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for numbers in groups.values():
        views |= dict(
            zip(
                numbers,
                gather(wanted[numbers[0]][0], [wanted[n][1] for n in numbers]),
                strict=True,
            )
        )
    return [views[number] for number in range(len(wanted))]


def _common_columns(tests: list[Rows]) -> list[str]:
    """Columns that every party's raw test rows have, in the order of the first: predictions are
    one table.
    """
    others = [set(rows.frame.columns) for rows in tests]
    return [name for name in tests[0].frame.columns if all(name in names for names in others)]


def _user_numbers(held: list[_Held]) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], np.ndarray]:
    """Numbers 0, 1, ... over the users of all parties, those with training rows first; and their
    names.
    """
    import pandas as pd

    pieces = []
    for rows, at in [(o.rows, o.share.train) for o in held] + [
        (o.test, o.share.test) for o in held
    ]:
        if rows.users is None and len(at):
            return [], np.empty(0, dtype=object)
        pieces.append(np.empty(0, dtype=object) if rows.users is None else rows.users[at])
    codes, names = pd.factorize(np.concatenate(pieces))
    cuts = np.cumsum([len(piece) for piece in pieces])[:-1]
    numbers = [torch.from_numpy(part.astype(np.int64)) for part in np.split(codes, cuts)]
    return list(zip(numbers[: len(held)], numbers[len(held) :], strict=True)), np.asarray(names)


def _together(parties: list[PartyData]) -> Table | None:
    """All test rows as one table, where the config says that they are public."""
    import pandas as pd

    tests = [party.test for party in parties if party.test is not None]
    if not tests:
        return None
    frames = [test.frame for test in tests if test.frame is not None]
    labels = [test.labels for test in tests if test.labels is not None]
    return Table(
        torch.cat([test.features for test in tests]),
        torch.cat(labels),
        pd.concat(frames, ignore_index=True),
    )


def _scored(
    features: torch.Tensor, frame: pd.DataFrame, encoding: Encoding, source: str, how: Scored
) -> Table:
    there = encoding.label.name in frame.columns
    labels = encoding.encode_labels(frame, source, how.numbers) if there else None
    return Table(features, labels, frame)
