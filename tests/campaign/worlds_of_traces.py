"""The same jobs in the words of other projects: what each format's files look like, as its project documents them."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from hypothesis import strategies as st

DAY_S = 86_400
BEGIN_S = 1_600_000_000


@dataclass(frozen=True)
class Asked:
    """A job as a test means it."""

    submit_s: int
    wait_s: int
    run_s: int
    nodes: int
    gpus: int
    limit_min: int | None
    team: str


JOBS = st.lists(
    st.builds(
        Asked,
        submit_s=st.integers(0, 90 * DAY_S), wait_s=st.integers(0, DAY_S), run_s=st.integers(0, 30 * DAY_S),
        nodes=st.integers(1, 64), gpus=st.sampled_from((1, 2, 4, 8)),
        limit_min=st.none() | st.integers(1, 40_000), team=st.sampled_from(("vcJkd", "vcJKD", "red team", "u_5")),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


def _at(seconds: int, join: str = " ", zone: str = "") -> str:
    return datetime.fromtimestamp(BEGIN_S + seconds, UTC).strftime(f"%Y-%m-%d{join}%H:%M:%S") + zone


def _limit(minutes: int | None) -> str:
    if minutes is None:
        return "UNLIMITED"
    days, hours = divmod(minutes // 60, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes % 60:02}:00"


def sacct(jobs: list[Asked]) -> str:
    """Return what `sacct -P` prints: a line for the job, one for its batch step, and some jobs without GPUs."""
    lines = ["JobID|Account|Submit|Start|End|Timelimit|NNodes|AllocTRES|State"]
    for at, job in enumerate(jobs):
        start_s = job.submit_s + job.wait_s
        tres = f"billing=9,cpu=64,gres/gpu:h100={job.nodes * job.gpus},gres/gpu={job.nodes * job.gpus},node={job.nodes}"
        times = f"{_at(job.submit_s, 'T')}|{_at(start_s, 'T')}|{_at(start_s + job.run_s, 'T')}"
        lines += [f"{at}|{job.team}|{times}|{_limit(job.limit_min)}|{job.nodes}|{tres}|COMPLETED",
                  f"{at}.batch|{job.team}|{times}||{job.nodes}|cpu=64|COMPLETED"]  # fmt: skip
    return "\n".join([*lines, f"99|x|{_at(0, 'T')}|Unknown|Unknown|UNLIMITED|1|cpu=4,node=1|CANCELLED by 0", ""])


def swf(jobs: list[Asked]) -> str:
    """Return the Standard Workload Format; a processor is a GPU."""
    lines = ["; Version: 2.2", "; MaxProcs: 512"]
    for at, job in enumerate(jobs, start=1):
        limit = -1 if job.limit_min is None else job.limit_min * 60
        group = ("vcJkd", "vcJKD", "red team", "u_5").index(job.team)
        lines.append(f"{at:6} {job.submit_s} {job.wait_s} {job.run_s} {job.nodes * job.gpus} -1 -1 "
                     f"{job.nodes * job.gpus} {limit} -1 1 3 {group} -1 -1 -1 -1 -1")  # fmt: skip
    return "\n".join([*lines, f"99 {jobs[0].submit_s} 0 -1 4 -1 -1 4 -1 -1 5 1 1 -1 -1 -1 -1 -1", ""])


def philly(jobs: list[Asked]) -> str:
    """Return `cluster_job_log`; a job that was never scheduled has no attempts."""
    found = []
    for at, job in enumerate(jobs):
        start_s = job.submit_s + job.wait_s
        detail = [{"ip": f"m{node}", "gpus": [f"gpu{gpu}" for gpu in range(job.gpus)]} for node in range(job.nodes)]
        lost = {"start_time": _at(start_s), "end_time": None, "detail": detail}
        attempt = {"start_time": _at(start_s), "end_time": _at(start_s + job.run_s), "detail": detail}
        found.append({"status": "Pass", "vc": job.team, "jobid": f"application_{at}", "attempts": [lost, attempt],
                      "submitted_time": _at(job.submit_s), "user": "ce2f4c"})  # fmt: skip
    found.append({"status": "Killed", "vc": "x", "jobid": "application_99", "attempts": [], "submitted_time": _at(0),
                  "user": "u"})  # fmt: skip
    return json.dumps(found, indent=1)


def helios(jobs: list[Asked]) -> str:
    """Return `cluster_log.csv`."""
    lines = ["job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"]
    for at, job in enumerate(jobs):
        start_s = job.submit_s + job.wait_s
        times = f"{_at(job.submit_s)},{_at(start_s)},{_at(start_s + job.run_s)}"
        size = f"{job.nodes * job.gpus},8,{job.nodes}"
        lines.append(f"{at},u1,{job.team},{size},COMPLETED,{times},{job.run_s},{job.wait_s}")
    return "\n".join([*lines, f"99,u1,vcx,0,8,1,FAILED,{_at(0)},{_at(0)},{_at(9)},9,0", ""])


def acme(jobs: list[Asked]) -> str:
    """Return `trace_kalos.csv`, whose durations count from the submission."""
    lines = ["job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
             "end_time,fail_time,stop_time,duration,queue,gpu_time"]  # fmt: skip
    for at, job in enumerate(jobs):
        start_s = job.submit_s + job.wait_s
        submit, start, end = (_at(each, zone="+00:00") for each in (job.submit_s, start_s, start_s + job.run_s))
        size = f"{job.nodes},{job.nodes * job.gpus},96,1000,100.0"
        lines.append(f"dlc{at},{job.team},{size},Other,FAILED,{submit},{start},{end},{end},,"
                     f"{job.wait_s + job.run_s},{job.wait_s}.0,0")  # fmt: skip
    end = _at(5, zone="+00:00")
    return "\n".join([*lines, f"dlcx,u9,1,8,96,1,1.0,Other,CANCELLED,{end},,{end},,,0,,0", ""])


def pai(jobs: list[Asked]) -> tuple[str, str]:
    """Return `pai_task_table.csv` and `pai_job_table.csv`: no headers, times from a start that nobody knows."""
    tasks, table = [], []
    for at, job in enumerate(jobs):
        start_s, day = 1_000_000 + job.submit_s + job.wait_s, DAY_S
        tasks += [f"job{at},worker,{job.nodes}.0,Terminated,{start_s}.0,{start_s + job.run_s}.0,600.0,29.3,"
                  f"{job.gpus * 100 - 50}.0,V100",
                  f"job{at},ps,2.0,Terminated,{start_s - day}.0,{start_s + day}.0,600.0,29.3,,"]  # fmt: skip
        table.append(f"job{at},i{at},{job.team},Terminated,{1_000_000 + job.submit_s}.0,{start_s + job.run_s}.0")
    return "\n".join([*tasks, "job99,ps,1.0,Failed,5.0,,100.0,1.0,0.0,", ""]), "\n".join([*table, ""])


def pods(jobs: list[Asked]) -> str:
    """Return `openb_pod_list`; every job is one pod, and teams are what services and batch jobs are called."""
    lines = ["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,"
             "scheduled_time"]  # fmt: skip
    for at, job in enumerate(jobs):
        start_s = job.submit_s + job.wait_s
        times = f"{job.submit_s},{start_s + job.run_s},{start_s}"
        lines.append(f"openb-pod-{at},4000,15258,{job.gpus},220,,{job.team},Running,{times}")
    rest = ("openb-pod-x,4000,15258,0,0,,BE,Running,0,9,0", "openb-pod-y,4,1,1,220,,BE,Pending,0,9,")
    return "\n".join([*lines, *rest, ""])


FORMATS = {
    "Slurm sacct": sacct, "SWF": swf, "Philly": philly, "Helios": helios, "Acme": acme,
    "Alibaba 2020": lambda jobs: pai(jobs)[0], "Alibaba 2023": pods,
}  # fmt: skip
