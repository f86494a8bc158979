"""Link's own side, outside every sandbox: agents and their folders, their memory's engine, and the clients that use it.

It starts programs and imports no engine.
"""
