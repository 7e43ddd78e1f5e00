"""`tfdist plan`: the cost of a training step on more machines, before they are rented.

| File | Holds |
|---|---|
| `units.py` | numbers with units, as they are typed and as they are shown |
| `traffic.py` | the bytes and messages of each algorithm, as pure formulas |
| `costs.py` | step time, efficiency, and the bandwidth that a target needs, from those |
| `measure.py`, `alone.py` | the parent and the child of `--model`: times steps of a script |
| `memory.py` | the memory of a worker, with each stage of `Sharding` |
| `no_saves.py` | keeps such a script from writing files of its training |
| `report.py`, `chart.py` | the tables, the JSON and the picture |
"""
