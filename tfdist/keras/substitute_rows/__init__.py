"""A replica without rows computes on a substitute row of weight 0.

| file | contents |
|---|---|
| `padding.py` | the substitute row: adds it to inputs, removes it from outputs |
| `calls.py` | the outermost layer call of a replica, in which the row exists |

The hooks are in `tfdist.keras.hooks.substitutes`.
"""
