"""The control link between the supervisor (`hub.py`) and its children (`child.py`)."""
