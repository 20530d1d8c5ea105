"""As `counters.py`, where putting back forgets the list of the callback."""

import sys
from pathlib import Path

state_reader = sys.modules.get("cotenant.checkpoint.zerocode.state_reader")
if state_reader is not None:
    put_back = state_reader.StateReader.put_back

    def forget(reader):
        reader._tree["changed"] = [each for each in reader._tree["changed"] if each[0] != "listing.steps"]
        return put_back(reader)

    state_reader.StateReader.put_back = forget

exec(compile(Path(__file__).with_name("counters.py").read_text(), __file__, "exec"))
