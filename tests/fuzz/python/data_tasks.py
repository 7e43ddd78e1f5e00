"""Descriptions of queues of data tasks, which come in parts: `tfdist/data/queue`.

Input: the text of a description, as UTF-8, or how a right one is altered. It is parsed and can be
dealt out, or it is refused with a DescriptionError; the text of the parsed description gives the
same again.
"""

import json

from altered_json import altered

from tfdist.data.queue.description import Description, DescriptionError, FilePosition, Spec

_RIGHT = (
    Description(Spec("ranges", 10, 4, "", (), 2, True, 7, 30.0)),
    Description(
        Spec("files", 0, 4, "lines", (("a.txt", 100), ("b.txt", 50)), None, False, None, 30.0),
        (FilePosition(0, 0, 4, 0, 60), FilePosition(1, 0, 2, 10, 40)),
    ),
)


def run(data: bytes) -> None:
    form, content = data[0] if data else 0, data[1:]
    if form >= 128:
        content = altered(_RIGHT[form % 2].text().encode(), content)
    text = content.decode(errors="replace")
    is_whole = form % 4 < 2
    try:
        found = Description.parse(text, is_whole)
    except DescriptionError as error:
        assert str(error)
        return
    again = Description.parse(found.text(), is_whole)
    assert again == found and not again.spec.difference(found.spec)
    assert found.spec.digest == again.spec.digest
    assert found.spec.data_digest == again.spec.data_digest
    if not is_whole or found.spec.records // found.spec.task_size > 1000:
        return
    plan = found.plan(1)
    for task in range(len(plan.sizes)):
        assert found.name(task, 1) and found.place(task)


def seeds() -> list[bytes]:
    ranges, files = _RIGHT
    spec = json.loads(ranges.text())
    spec["spec"]["about"] = "\ud800"
    texts = [ranges.text(), files.text(), json.dumps(spec), "[" * 2000]
    whole = [b"\0" + text.encode() for text in texts] + [b"\2" + files.text().encode()]
    return whole + [bytes([128 + number, number // 2, number]) for number in range(64)]
