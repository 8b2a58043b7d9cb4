"""The mathematics behind the fabric's decisions: closed forms, and simulations that check them.

Each module holds one subject. Closed forms are functions of plain numbers with their source beside them. A simulation
carries out the process itself (throws balls, runs a queue, steps through a sender), is given its random generator and
returns an `Estimate`; it never uses the formula that it checks.
"""
