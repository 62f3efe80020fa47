"""`python -m homo_dp.keys`: make a key pair, and show the public line to exchange with the other side."""

import sys
from collections.abc import Sequence
from pathlib import Path

from homo_dp.cli import Parser, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; what is wrong with the input comes out as InputError."""
    options = _parser().parse_args(arguments)
    from homo_dp.transport.keys import new_key_pair, read_key_pair, read_public_key, write_key_pair

    if options.command == "new":
        pair = new_key_pair(options.name)
        private, public = write_key_pair(pair, options.dir)
        print(pair.public.line)
        if not options.quiet:
            print(
                f"{private} stays with you (mode 0600); give the line above, or {public}, to the other side and "
                f"compare the fingerprint by another way: {pair.public.fingerprint}",
                file=sys.stderr,
            )
        return 0
    key = read_public_key(options.file) if options.file.suffix == ".pub" else read_key_pair(options.file).public
    print(key.line)
    if not options.quiet:
        print(f"fingerprint: {key.fingerprint}", file=sys.stderr)
    return 0


def _parser() -> Parser:
    parser = Parser(prog="python -m homo_dp.keys", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new", help="make NAME.key (private, mode 0600) and NAME.pub; print the public line")
    new.add_argument("name", metavar="NAME", help="id of the party, or `aggregator`")
    new.add_argument("--dir", metavar="DIR", type=Path, default=Path(), help="where to write the files (default: here)")
    show = commands.add_parser("show", help="print the public line of a key file")
    show.add_argument("file", metavar="FILE", type=Path, help="NAME.key or NAME.pub")
    for command in (new, show):
        command.add_argument("--quiet", action="store_true", help="print the public line only")
    return parser


if __name__ == "__main__":
    run(main)
