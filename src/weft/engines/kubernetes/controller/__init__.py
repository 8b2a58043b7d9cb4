"""The controller: a pure `reconcile` over cached objects, and the loop, writer and election around it."""
