"""The lock of Flower's environment differs from ours only where flwr's own pins ask for it."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
CLASHES = {"fastapi", "packaging", "protobuf", "rich", "starlette", "uvicorn"}


def pins(name: str) -> dict[str, str]:
    lines = [line.strip() for line in (ROOT / name).read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {package.lower().replace("_", "-"): version for package, version in pairs}


def test_the_two_locks_differ_only_where_flwr_clashes() -> None:
    ours, flower = pins("constraints.txt"), pins("constraints-flower.txt")
    assert "flwr" in flower
    assert {name for name in ours.keys() & flower.keys() if ours[name] != flower[name]} == CLASHES
