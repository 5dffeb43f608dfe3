"""The control link between the supervisor and its children. `child.py` is the children's side, `hub.py` the other."""
