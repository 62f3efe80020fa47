"""Subjects, stream and consumers of a run at a NATS server; docs/transports.md builds
permissions from them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from homo_dp.federation.protocol.ids import AGGREGATOR


@dataclass(frozen=True)
class Names:
    """What the process `name` needs to know; ids were checked before, and a '.' in them becomes
    '='.
    """

    prefix: str
    run: str
    name: str

    @staticmethod
    def token(text: str) -> str:
        """`text` as one token of a subject."""
        return text.replace(".", "=")

    @property
    def base(self) -> str:
        """What all subjects of the run begin with."""
        return f"{self.token(self.prefix)}.{self.token(self.run)}"

    @property
    def stream(self) -> str:
        """The stream of the run."""
        return f"{self.token(self.prefix)}-{self.token(self.run)}"

    def consumer(self, name: str) -> str:
        """The durable consumer of `name`."""
        return f"to-{self.token(name)}"

    def consumer_from(self, party: str) -> str:
        """The aggregator's durable consumer of what `party` sends: a sender of many fills only
        its own.
        """
        return f"from-{self.token(party)}"

    def subjects(self, kinds: Iterable[str]) -> list[str]:
        """All subjects of the run; a stream that takes no others can bound what each sender
        stores.
        """
        return [f"{self.base}.{way}.*.{kind}" for way in ("from", "to") for kind in kinds]

    def inbox(self) -> str:
        """Where the server answers this process; nobody else may listen there."""
        return f"_INBOX_{self.token(self.prefix)}.{self.token(self.name)}"

    def filter(self, name: str) -> str:
        """The subjects that `name` receives."""
        return (
            f"{self.base}.from.>" if name == AGGREGATOR else f"{self.base}.to.{self.token(name)}.>"
        )

    def subject(self, sender: str, recipient: str, kind: str) -> str:
        """The subject of a message."""
        way, party = ("from", sender) if recipient == AGGREGATOR else ("to", recipient)
        return f"{self.base}.{way}.{self.token(party)}.{kind}"

    def sender(self, subject: str) -> str:
        """Who may publish on `subject`."""
        fields = subject.split(".")
        return (
            fields[3].replace("=", ".") if len(fields) > 3 and fields[2] == "from" else AGGREGATOR
        )
