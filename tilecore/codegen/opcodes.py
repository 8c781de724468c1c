"""Mnemonics of NVIDIA's machine instructions by their opcode bits.

The lowest 9 of an instruction's 128 bits name it; the next 3 say where its operands are. Learned
from nvdisasm 13.5's listing of every instruction of tilecore/lowering/cuda/instructions and of two
kernels of scalar code, for sm_75, sm_80, sm_86, sm_89, sm_90a and sm_100a (2026-11-22), and of the
library's kernels for sm_120 (2026-11-27): one opcode has another name there (LATER). 0x1a6 is what
`red` of neighbours becomes; its name is that of `red` of one element (2026-11-30). UTCMMA stands
for UTCHMMA, UTCQMMA, UTCOMMA and UTCIMMA, whose type is in other bits.
"""

MNEMONICS = {
    0x002: "MOV", 0x003: "P2R", 0x005: "CS2R", 0x006: "VOTE", 0x007: "SEL", 0x008: "FSEL",
    0x009: "FMNMX", 0x00b: "FSETP", 0x00c: "ISETP", 0x010: "IADD3", 0x011: "LEA", 0x012: "LOP3",
    0x013: "IABS", 0x016: "PRMT", 0x017: "IMNMX", 0x019: "SHF", 0x01c: "PLOP3", 0x020: "FMUL",
    0x021: "FADD", 0x023: "FFMA", 0x024: "IMAD", 0x025: "IMAD", 0x026: "IDP", 0x027: "IMAD",
    0x028: "DMUL", 0x029: "DADD", 0x02a: "DSETP", 0x02b: "DFMA", 0x02d: "PREEXIT", 0x02e: "ACQBULK",
    0x02f: "ELECT", 0x030: "HADD2", 0x031: "HFMA2", 0x032: "HMUL2", 0x034: "HSETP2", 0x035: "HFMA2",
    0x037: "IMMA", 0x03b: "LDSM", 0x03c: "HMMA", 0x03e: "F2FP", 0x03f: "DMMA", 0x040: "HMNMX2",
    0x044: "STSM", 0x045: "I2FP", 0x046: "VIADDMNMX", 0x048: "VIMNMX", 0x04c: "UVIRTCOUNT",
    0x05e: "UI2FP", 0x076: "FMNMX3", 0x07a: "QMMA", 0x07f: "OMMA", 0x082: "UMOV", 0x086: "VOTEU",
    0x087: "USEL",
    0x08c: "UISETP", 0x090: "UIADD3", 0x091: "ULEA", 0x092: "ULOP3", 0x096: "UPRMT",
    0x097: "UIADD3", 0x099: "USHF", 0x09c: "UPLOP3", 0x0a4: "UIMAD", 0x0b9: "ULDC", 0x0bd: "UFLO",
    0x0ca: "R2UR", 0x100: "FLO", 0x101: "BREV", 0x102: "FCHK", 0x105: "F2I", 0x106: "I2F",
    0x107: "FRND", 0x108: "MUFU", 0x109: "POPC", 0x110: "F2F", 0x111: "F2I", 0x112: "I2F",
    0x118: "NOP", 0x119: "S2R", 0x11a: "DEPBAR", 0x11d: "BAR", 0x141: "BSYNC", 0x142: "BREAK",
    0x143: "CALL", 0x144: "CALL", 0x145: "BSSY", 0x146: "YIELD", 0x147: "BRA", 0x148: "WARPSYNC",
    0x149: "BRX", 0x14d: "EXIT", 0x14e: "LEPC", 0x150: "RET", 0x155: "BMOV", 0x15c: "BPT",
    0x15d: "NANOSLEEP", 0x180: "LD", 0x181: "LDG", 0x182: "LDC", 0x183: "LDL", 0x184: "LDS",
    0x185: "ST", 0x186: "STG", 0x187: "STL", 0x188: "STS", 0x189: "SHFL", 0x18a: "ATOM",
    0x18b: "ATOM", 0x18c: "ATOMS", 0x18d: "ATOMS", 0x18e: "RED", 0x18f: "CCTL", 0x192: "MEMBAR",
    0x1a1: "MATCH", 0x1a2: "ATOM", 0x1a3: "ATOMG", 0x1a6: "RED", 0x1a7: "SYNCS",
    0x1a9: "ATOMG", 0x1aa: "QSPC",
    0x1ac: "LDCU", 0x1ae: "LDGSTS", 0x1af: "LDGDEPBAR", 0x1b0: "ARRIVES", 0x1b1: "SYNCS",
    0x1b2: "SYNCS", 0x1b4: "UTMALDG", 0x1b5: "UTMASTG", 0x1b6: "UTMAREDG", 0x1b7: "UTMACMDFLUSH",
    0x1b9: "UTMACCTL", 0x1ba: "UBLKCP", 0x1bb: "UBLKRED", 0x1c3: "S2UR", 0x1c4: "REDUX",
    0x1c5: "WARPGROUP", 0x1c6: "FENCE", 0x1c8: "USETMAXREG", 0x1e3: "UTCATOMSWS", 0x1e7: "UTCCP",
    0x1e9: "UTCBAR",
    0x1ea: "UTCMMA", 0x1ed: "STTM", 0x1ee: "LDTM", 0x1f0: "HGMMA", 0x1f1: "IGMMA", 0x1f3: "QGMMA",
}  # fmt: skip
# Where the operand bits decide: by all 12.
EXACT = {
    0x236: "HMMA", 0x5ab: "CGAERRBAR", 0x836: "VIADD", 0x9ab: "ERRBAR", 0x9c7: "UCGABAR_ARV",
    0xc36: "VIADD", 0xdbd: "STAS", 0xdc7: "UCGABAR_WAIT",
}  # fmt: skip
# Those that mean something else from a capability on.
LATER = {(120, 0x035): "IADD"}
