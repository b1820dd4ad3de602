"""
The pictures of these pages, drawn from lists: ``python docs/pictures.py`` writes docs/pictures/.

A picture is a sequence: who talks to whom, from top to bottom. Each has its own background, so that
it can be read on a light and on a dark page; the colours follow the reader's setting.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "pictures"

WIDTH, STEP, TOP, MARGIN = 205, 38, 62, 92

STYLE = """
  svg { --paper: #ffffff; --ink: #1f2933; --line: #8a97a6; --bad: #c0262d; --good: #12733f;
        --box: #eef2f6; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #14181d; --ink: #e3e9ef; --line: #7d8a99; --bad: #ff8a8a; --good: #7ddca4;
          --box: #232b34; }
  }
  .paper { fill: var(--paper); }
  .box { fill: var(--box); stroke: var(--line); }
  text { fill: var(--ink); font: 13px system-ui, sans-serif; text-anchor: middle; }
  .name { font-weight: 600; }
  .label { paint-order: stroke; stroke: var(--paper); stroke-width: 5px; }
  .life { stroke: var(--line); stroke-dasharray: 3 4; }
  .arrow { stroke: var(--ink); stroke-width: 1.4; }
  .head { fill: var(--ink); }
  .bad text, text.bad { fill: var(--bad); }
  .bad .arrow { stroke: var(--bad); stroke-dasharray: 5 4; }
  .bad .head { fill: var(--bad); }
  .good text, text.good { fill: var(--good); }
"""

#: Name and title of each picture, who takes part, and the steps: "from > to: text" is a message,
#: "from x to: text" one that is lost, "who: text" happens at one place. A "+" or "-" before the
#: text says how it ends.
PICTURES = {
    "retry": (
        "A retry after a lost answer gets the first answer",
        ["client", "your view", "database"],
        [
            "client > your view: POST, key K",
            "your view > database: claim K",
            "your view > database: COMMIT payment + result",
            "your view x client: -201 is lost",
            "client > your view: POST again, key K",
            "your view > database: claim K",
            "database > your view: +COMPLETED, the answer",
            "your view > client: +201, the same answer",
        ],
    ),
    "killed-worker": (
        "A retry after a killed worker runs the work once",
        ["client", "worker A", "worker B", "database"],
        [
            "client > worker A: POST, key K",
            "worker A > database: claim K, lease 60 s",
            "worker A > database: payment, not committed",
            "worker A: -killed",
            "database: -rolls the payment back",
            "client > worker B: POST again, key K",
            "worker B > client: 409, Retry-After",
            "database: the lease lapses",
            "client > worker B: POST again, key K",
            "worker B > database: take over, epoch + 1",
            "worker B > database: COMMIT payment + result",
            "worker B > client: +201",
        ],
    ),
    "take-over": (
        "An owner that stalls cannot overwrite its successor",
        ["worker A", "database", "worker B"],
        [
            "worker A > database: claim, epoch 7",
            "worker A: -stalls",
            "database: the lease lapses",
            "worker B > database: take over, epoch 8",
            "worker B > database: work + completion, COMMIT",
            "worker A: wakes up",
            "worker A > database: work + completion of epoch 7",
            "database > worker A: -lease lost",
            "worker A: +rolls its work back",
        ],
    ),
    "lost-commit": (
        "When the answer to COMMIT is lost, the record decides",
        ["client", "your view", "database"],
        [
            "client > your view: POST, key K",
            "your view > database: work + completion, COMMIT",
            "database x your view: -the answer is lost",
            "your view > database: fail K, if my lease still holds",
            "database > your view: +no: COMPLETED under your token",
            "your view > client: +201",
        ],
    ),
    "joined": (
        "joined: the claim commits, then the work with its completion",
        ["another request", "the request", "database"],
        [
            "the request > database: claim, COMMIT",
            "another request > database: claim",
            "database > another request: 409, in progress",
            "the request > database: work",
            "the request > database: completion, if the lease holds",
            "the request > database: +COMMIT of both",
        ],
    ),
    "single": (
        "single: claim, work and completion are one transaction",
        ["another request", "the request", "database"],
        [
            "the request > database: BEGIN, lock of the key",
            "another request > database: lock of the key",
            "database > another request: 409, in progress",
            "the request > database: work",
            "the request > database: record with the answer",
            "the request > database: +COMMIT of all",
        ],
    ),
    "separate": (
        "separate: claim, work and completion commit one by one",
        ["another request", "the request", "store", "your database"],
        [
            "the request > store: claim",
            "another request > store: claim",
            "store > another request: 409, in progress",
            "the request > your database: work, COMMIT",
            "the request > store: +completion, if the lease holds",
        ],
    ),
}


def drawn(title, actors, steps):
    """Return a picture as SVG."""
    place = {name: MARGIN + WIDTH * n for n, name in enumerate(actors)}
    width, height = MARGIN * 2 + WIDTH * (len(actors) - 1), TOP + STEP * len(steps) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}" rx="8"/>',
    ]
    for name, x in place.items():
        parts.append(f'<path class="life" d="M{x} 44V{height - 10}"/>')
        parts.append(f'<rect class="box" x="{x - 65}" y="14" width="130" height="30" rx="5"/>')
        parts.append(f'<text class="name" x="{x}" y="34">{escape(name)}</text>')
    for number, step in enumerate(steps):
        parts.append(_step(step, place, TOP + STEP * number + 20))
    return "\n".join([*parts, "</svg>", ""])


def _step(step, place, y):
    way, _, text = step.partition(": ")
    mood = {"+": ' class="good"', "-": ' class="bad"'}.get(text[0], "")
    text = escape(text.lstrip("+-"))
    for sign in (" > ", " x "):
        if sign in way:
            start, end = (place[name] for name in way.split(sign))
            break
    else:
        x, half = place[way], len(text) * 3.6 + 8
        size = f'x="{x - half}" y="{y - 18}" width="{2 * half}"'
        label = f'<rect class="box" {size} height="24" rx="12"/>'
        return f'<g{mood}>{label}<text x="{x}" y="{y - 2}">{text}</text></g>'
    way = 1 if end > start else -1
    if sign == " x ":
        end = (start + end) / 2
        tip = f'<text x="{end}" y="{y + 5}">\u00d7</text>'
    else:
        tip = f'<path class="head" d="M{end} {y}l{-9 * way} -4.5v9z"/>'
    middle = (start + end) / 2 if sign == " > " else start + way * WIDTH / 2
    label = f'<text class="label" x="{middle}" y="{y - 7}">{text}</text>'
    return f'<g{mood}>{label}<path class="arrow" d="M{start} {y}H{end - 8 * way}"/>{tip}</g>'


def main():
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, picture in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(drawn(*picture))


if __name__ == "__main__":
    main()
