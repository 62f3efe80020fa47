"""`python -m homo_dp.keys`: make, show, renew and revoke the keys of parties and aggregator
(docs/keys.md).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from homo_dp.console.options import Parser, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; what is wrong with the input comes out as InputError."""
    options = make_parser().parse_args(arguments)
    commands = {"new": _new, "show": _show, "renew": _renew, "accept": _accept, "revoke": _revoke}
    commands[options.command](options)
    return 0


def _new(options: argparse.Namespace) -> None:
    from homo_dp.transport.keys import new_key_pair, parse_expiry, write_key_pair

    pair = new_key_pair(options.name, parse_expiry(options.expires) if options.expires else None)
    private, public = write_key_pair(pair, options.dir)
    print(pair.public.line)
    _say(
        options,
        f"{private} stays with you (mode 0600); give the line above, or {public}, to the other "
        f"side and compare the fingerprint by another way: {pair.public.fingerprint}",
    )


def _show(options: argparse.Namespace) -> None:
    from homo_dp.transport.keys import read_key_pair, read_public_key

    key = (
        read_public_key(options.file)
        if options.file.suffix == ".pub"
        else read_key_pair(options.file).public
    )
    print(key.line)
    _say(options, f"fingerprint: {key.fingerprint}")


def _renew(options: argparse.Namespace) -> None:
    from homo_dp.transport.keys import (
        new_key_pair,
        parse_expiry,
        read_key_pair,
        renewal_line,
        retire,
        write_key_pair,
    )

    old = read_key_pair(options.file)
    new = new_key_pair(old.name, parse_expiry(options.expires) if options.expires else None)
    line = renewal_line(old, new)
    retired = retire(options.file)
    write_key_pair(new, options.file.parent, stem=options.file.stem)
    print(line)
    _say(
        options,
        f"{options.file} is new, the old key is {retired}; give the line above to the other side, "
        "which takes it with `python -m homo_dp.keys accept`; new fingerprint: "
        f"{new.public.fingerprint}",
    )


def _accept(options: argparse.Namespace) -> None:
    from homo_dp.transport.keys import accept_renewal, read_public_key

    key = accept_renewal(options.line, read_public_key(options.old))
    print(key.line)
    _say(
        options,
        f"signed by the old key of {key.name}: put the line above in place of the old one, then "
        f"start again; the run continues. Fingerprint: {key.fingerprint}. If the old key may be "
        "stolen, believe no renewal: ask them",
    )


def _revoke(options: argparse.Namespace) -> None:
    from homo_dp.transport.keys import PUBLIC_MARK, parse_public_line, read_public_key
    from homo_dp.transport.revocation import add_revoked

    given = options.key
    key = (
        parse_public_line(given) if given.startswith(PUBLIC_MARK) else read_public_key(Path(given))
    )
    added = add_revoked(options.list, key, options.why)
    print(options.list)
    what = "was added" if added else "was there already"
    _say(
        options,
        f"the key {key.fingerprint} of {key.name} {what}; set transport.revoked_keys to this file "
        "on every side: processes that run with it believe the key no more within a second",
    )


def _say(options: argparse.Namespace, text: str) -> None:
    if not options.quiet:
        print(text, file=sys.stderr)


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(prog="python -m homo_dp.keys", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser(
        "new", help="make NAME.key (private, mode 0600) and NAME.pub; print the public line"
    )
    new.add_argument("name", metavar="NAME", help="id of the party, or `aggregator`")
    new.add_argument(
        "--dir",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="where to write the files (default: here)",
    )
    show = commands.add_parser("show", help="print the public line of a key file")
    show.add_argument("file", metavar="FILE", type=Path, help="NAME.key or NAME.pub")
    renew = commands.add_parser(
        "renew", help="replace a key by a new one; print a line that the old key signed"
    )
    renew.add_argument(
        "file", metavar="FILE", type=Path, help="NAME.key, which is kept as NAME.key.old-N"
    )
    accept = commands.add_parser(
        "accept", help="check such a line; print the new public line to put into the config"
    )
    accept.add_argument(
        "old", metavar="OLD.pub", type=Path, help="the public key that is believed so far"
    )
    accept.add_argument("line", metavar="LINE", help="what `renew` printed, in quotes")
    revoke = commands.add_parser(
        "revoke", help="add a key to the list of keys that are trusted no more"
    )
    revoke.add_argument("key", metavar="KEY", help="NAME.pub, or the public line in quotes")
    revoke.add_argument(
        "--list",
        metavar="FILE",
        type=Path,
        required=True,
        help="the list; made if it is not there",
    )
    revoke.add_argument("--why", metavar="TEXT", default="", help="a remark that is kept beside it")
    for command in (new, renew):
        command.add_argument(
            "--expires", metavar="YYYY-MM-DD", help="the last day on which the key is believed"
        )
    for command in (new, show, renew, accept, revoke):
        command.add_argument("--quiet", action="store_true", help="print the line only")
    return parser


if __name__ == "__main__":
    run(main)
