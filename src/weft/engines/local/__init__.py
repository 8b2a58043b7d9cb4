"""The local engine: slots of this machine as nodes, jobs as processes, decisions by `cluster.plan`.

`engine` carries out what is decided and `store` remembers it; `runner` is the small process around each job that
outlives the engine; `archive` keeps working folders as they were; `client` speaks to a running engine over HTTP, which
`web` serves.
"""
