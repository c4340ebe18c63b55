"""The files of a cluster: settings, keys, the signed directory, folders, locks (design 5, 11)."""

from runtime.cluster.cluster import Cluster, ProcessEntry, load_cluster
from runtime.cluster.create import DEFAULT_NODES, init_cluster, update_cluster
from runtime.cluster.fault import ClusterFault, ClusterFaultCode
from runtime.cluster.keys import SecretSeed, read_key, transport_key, write_key
from runtime.cluster.lock import cluster_holder, lock_cluster, lock_state
from runtime.cluster.names import Role, check_name
from runtime.cluster.settings import NodeSettings, Restarts, Times

__all__ = [
    "DEFAULT_NODES",
    "Cluster",
    "ClusterFault",
    "ClusterFaultCode",
    "NodeSettings",
    "ProcessEntry",
    "Restarts",
    "Role",
    "SecretSeed",
    "Times",
    "check_name",
    "cluster_holder",
    "init_cluster",
    "load_cluster",
    "lock_cluster",
    "lock_state",
    "read_key",
    "transport_key",
    "update_cluster",
    "write_key",
]
