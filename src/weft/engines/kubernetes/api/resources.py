"""Kinds of objects that the engine speaks of, and where a server keeps them.

Names only: nothing here talks to a server. `GROUP` is ours; everything else is Kubernetes' own and used as it is.
"""

from dataclasses import dataclass

GROUP = "cluster.weft"
VERSION = "v1alpha1"


@dataclass(frozen=True)
class Resource:
    """One kind: its group, version, plural name and whether it lives in namespaces."""

    group: str
    """API group, empty for the core one."""
    version: str
    """Version in the group."""
    plural: str
    """Name in addresses."""
    kind: str
    """Name in objects."""
    namespaced: bool = True
    """Whether its objects belong to a namespace."""

    @property
    def api_version(self) -> str:
        """Return what objects of this kind write as apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, part: str | None = None) -> str:
        """Return the address of the collection, of one object, or of a subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(piece for piece in (f"{root}{inside}/{self.plural}", name, part) if piece)


NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
EVENTS = Resource("", "v1", "events", "Event")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
OLD_BUDGETS = Resource("policy", "v1beta1", "poddisruptionbudgets", "PodDisruptionBudget")
"""What servers before 1.21 offer."""
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
BATCH_JOBS = Resource("batch", "v1", "jobs", "Job")
JOBS = Resource(GROUP, VERSION, "weftjobs", "WeftJob")
TEAMS = Resource(GROUP, VERSION, "teams", "Team", namespaced=False)
HEALTH = Resource(GROUP, VERSION, "nodehealths", "NodeHealth", namespaced=False)
TOPOLOGIES = Resource(GROUP, VERSION, "topologies", "Topology", namespaced=False)

OURS = (JOBS, TEAMS, HEALTH, TOPOLOGIES)
"""The kinds that are defined here."""

JOB_LABEL = f"{GROUP}/job"
"""On a pod: the job that it belongs to."""
RANK_LABEL = f"{GROUP}/rank"
"""On a pod: its place in the gang."""
ATTEMPT_LABEL = f"{GROUP}/attempt"
"""On a pod: which placement of the job it was made for."""
QUEUE_LABEL = f"{GROUP}/queue"
"""On a Job, JobSet, TrainJob or PyTorchJob: weft queues and places it. Its value names the team."""
PRIORITY_LABEL = f"{GROUP}/priority"
"""On the same: its place in the queue, as a WeftJob's priority."""
OWNER_LABEL = f"{GROUP}/owner"
"""On a pod that another controller has made: uid of the WeftJob that stands for its workload."""
FIRST_LABEL = f"{GROUP}/first"
"""On the same: the first place in the gang of its group of pods."""
EACH_LABEL = f"{GROUP}/each"
"""On the same: pods of each Job of its group."""
GATE = f"{GROUP}/placement"
"""Scheduling gate of such pods until they have a node, and the annotation that says which placement they are for."""
HOST_LABEL = "kubernetes.io/hostname"
"""On a node: its name; a pod that selects it can run nowhere else."""
POOL_LABEL = f"{GROUP}/pool"
"""On a node: it belongs to us. Its value names the pool."""
POOL_TAINT = f"{GROUP}/pool"
"""On a node: only pods that were placed by weft may run there."""
SICK_TAINT = f"{GROUP}/quarantined"
"""On a node: nothing new may run there until it has been tested."""
STATE_LABEL = f"{GROUP}/state"
"""On a node: where it stands in its life."""
SCHEDULER = "weft"
"""The schedulerName of our pods."""
GPU = "nvidia.com/gpu"
"""The extended resource that GPUs are asked for by."""
