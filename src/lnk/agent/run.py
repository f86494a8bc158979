"""The file that the configuration of an MCP client names: one session with the tool whose name it is given.

It is run by its path (`python -I -S run.py memory-<id>`), which starts 20 ms sooner than `lnk agent tool run`.
"""

if __name__ == "__main__":
    import os
    import sys

    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from lnk.light import stand_in

    stand_in()
    from lnk.agent.home import link_home
    from lnk.agent.proxy import main

    sys.exit(main([link_home(os.environ), *sys.argv[1:]]))
