"""The `report` section: what a privacy officer wants to find on the report and no run can know."""

from homo_dp.config.base import Section, Text, key


class ReportConfig(Section):
    """Words for the report; they change nothing about a run."""

    purpose: Text | None = key(None, "What the model is for.")
    controller: Text | None = key(None, "Who is responsible for the data (data controller).")
    retention: Text | None = key(None, "How long model, outputs and ledger are kept.")
    contact: Text | None = key(None, "Whom to ask.")
