"""The papers that several files of algorithms cite."""

CHAN = (
    "Chan, Heimlich, Purkayastha, van de Geijn: Collective communication: theory, practice, and "
    "experience, 2007, doi:10.1002/cpe.1206"
)
MELLOR_CRUMMEY = (
    "Mellor-Crummey, Scott: Algorithms for scalable synchronization on shared-memory "
    "multiprocessors, 1991, doi:10.1145/103727.103729"
)
THAKUR = (
    "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, "
    "2005, doi:10.1177/1094342005051521"
)
