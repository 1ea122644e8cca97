# SPDX-License-Identifier: Apache-2.0
"""`netfold what-if`: a recorded training, replayed on a fabric with collectives of other kinds.

    traces.py    reads recordings, of our own form and of others
    program.py   what the ranks do, from their recordings: computing, calls, and waits
    costs.py     what packets and processors add to a collective's bytes
    ways.py      which bytes a collective puts on which links, by each way to carry it
    replay.py    a training's steps on a fabric, in time
    report.py    the table, the figure and the JSON of a replay
"""
