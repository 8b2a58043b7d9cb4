"""How far a Clos network of k-port switches reaches, and what it takes for each NIC.

Folded Clos with full bisection (Clos 1953; Al-Fares et al., SIGCOMM 2008, section 2.2): every tier but the top gives
half of its ports to the tier below. With t tiers that is 2 (k/2)^t hosts. A switch of capacity C split into ports of
rate s has k = C/s of them and a NIC of rate R needs p = R/s planes, so p/k = R/C whatever the split: the parts for each
NIC depend on the tiers alone, while the reach grows with k^t.
"""

from fractions import Fraction


def hosts(tiers: int, radix: int) -> int:
    """Return the NICs that one plane reaches: k, k^2/2, k^3/4, k^4/8."""
    return 2 * (radix // 2) ** tiers


def switches_per_nic(tiers: int, radix: int, planes: int = 1) -> Fraction:
    """Return the switches for each NIC at full size: p (2t - 1) / k."""
    return Fraction(planes * (2 * tiers - 1), radix)


def longest_path(tiers: int) -> int:
    """Return how many switches the longest path crosses."""
    return 2 * tiers - 1


def tiers_needed(nics: int, radix: int, most: int = 8) -> int | None:
    """Return the fewest tiers that reach `nics`, or none where `most` do not."""
    return next((tiers for tiers in range(1, most + 1) if hosts(tiers, radix) >= nics), None)
