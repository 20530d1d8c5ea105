"""`cotenant demo`: real jobs share a device, one is preempted and resumes."""
