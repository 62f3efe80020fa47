"""The ClientApp of a node: a relay between Flower and the party, which holds table, keys and
ledger.

It touches no row and opens no seal. The ServerApp is told of an error in one word; the details are
in the node's log.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from homo_dp.core.errors import ConfigError
from homo_dp.transport.flower.envelopes import Answer, SealedQuestion
from homo_dp.transport.flower.relay import PartyPlace, carry

log = logging.getLogger(__name__)
RECORD = "homo_dp"

app = ClientApp()


@app.query()  # type: ignore[untyped-decorator,unused-ignore]
def query(message: Message, context: Context) -> Message:
    """Ask the party what it has to say, or tell it the plan and the end."""
    return _carried(message, context)


@app.train()  # type: ignore[untyped-decorator,unused-ignore]
def train(message: Message, context: Context) -> Message:
    """Bring the weights of a round, or a phase of secure sums, and fetch the sealed update."""
    return _carried(message, context)


def _carried(message: Message, context: Context) -> Message:
    try:
        question = SealedQuestion.of(dict(message.content.config_records[RECORD]))
        answer = carry(replace(question, job=str(context.run_id)), _place(context, question.run))
    except Exception:  # the error's text would be sent: it may hold paths and settings of this site
        log.exception("homo_dp: the party could not be asked")
        answer = Answer("failed")
    return Message(RecordDict({RECORD: ConfigRecord(answer.fields())}), reply_to=message)


def _place(context: Context, run: str) -> PartyPlace:
    socket, config = context.node_config.get("socket"), context.node_config.get("party")
    if isinstance(socket, str):
        return PartyPlace(Path(socket))
    if isinstance(config, str):
        return PartyPlace.of(config, run)
    raise ConfigError(
        "--node-config: name the party, 'party=\"conf/party_a.yaml\"', or where it listens, "
        "'socket=\"/run/p.sock\"'"
    )
