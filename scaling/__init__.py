"""From one machine to many: the terms of a step, the links between hosts, and what larger clusters would give."""
