"""Both ends of plain MCP, both eras: the stateless 2026-07-28 and the handshake from 2024-11-05 to 2025-11-25.

The core does no I/O: lines go in, actions and lines come out. Knows nothing of Link.
"""
