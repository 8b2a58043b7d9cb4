"""The lab: a multi-plane SRv6 fabric of network namespaces on one machine, with faults on request.

Switches and hosts are namespaces, links are veth pairs, tables are the static ones of `fabric`; the machine's kernel
forwards. `plan` says what is made, as data; `faults` what is done to it; `machine` runs it as root or in a user
namespace; `record` remembers it; `lab` ties them together. `probe` and `survey` look for sick links, `traffic` carries
MRC and TCP side by side.
"""
