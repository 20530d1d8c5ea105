/* A stand-in for NVIDIA's management library, for tests: the functions that cotenant calls, answered from a
 * text file that is read again at every call, so that a test changes the GPUs under a process that watches.
 *
 * Build:  cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 mock_nvml.c
 *         (with -DOLD_DRIVER: without the functions that old drivers lack; with -DV535: version 3 of the lists
 *         of processes writes the larger records of drivers 535.43 to 535.86, version 2 those of all others)
 * Use:    LD_LIBRARY_PATH=its folder, COTENANT_MOCK_NVML=the file, both set before the process starts.
 *
 * The file, one fact per line, the last one of a kind counts; memory in MiB:
 *
 *     init 9                      nvmlInit answers 9 (driver not loaded), 4 (not permitted), ...
 *     driver VERSION | cuda N     what the driver says of itself; N as NVML has it (13020 is 13.2), 0: no answer
 *     hang CALL [INDEX]           that call (of that GPU) does not come back while this line is there
 *     fail CALL CODE              that call answers CODE for every GPU; up to 8 calls
 *     gpu I uuid GPU-...          how many GPUs there are follows from the largest I
 *     gpu I name | total | reserved | used | rc | capability | mode | persistence | mig | ecc | remap | energy
 *     gpu I mig_next 0|1          the MIG mode that waits for a reset (as now, if it is not said)
 *     gpu I instance UUID NAME    a MIG instance, of 9984 MiB; NVML numbers its GPU instance from 1 on
 *     gpu I clocks NOW MAX BITS   MHz, and what holds the clock down
 *     gpu I nvlinks N             how many links are up; GPUs with links reach each other by them
 *     gpu I gpm 1                 it has GPM counters
 *     gpu I recovery N            what the driver wants done with it (field 230); without it nobody knows
 *     process I PID MIB C|G|M     a process on GPU I: compute, graphics, MPS client; -1 MIB: nobody knows
 *     xid I NUMBER [GI]           happens when it is added, to who waits for events; on that GPU instance
 *     claims FOLDER               each file UUID.PID.MIB in it, C or M its first letter, is one more process (and
 *                                 its memory in use) for as long as it lives
 *
 * A compute mode that is set is kept in the file's name + ".mode-I", and counts more than the file.
 *
 * Every GPU's name ends in "(mock)": what is recorded from it says so.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMED_OUT = 10,
    GPUS_MAX = 16, MIG_MAX = 7, PROCESSES_MAX = 64, XIDS_MAX = 256, XID_EVENT = 8
};
#define MIB (1024ULL * 1024ULL)
#define MIG_TOTAL 9984ULL
#define MIG_RESERVED 20ULL

/* --- What the file says ------------------------------------------------------------------------- */

typedef struct { unsigned pid; unsigned long long used_mib; char kind; int gpu, instance; } Process;
typedef struct {
    char uuid[96], name[96], mig_uuid[MIG_MAX][96], mig_name[MIG_MAX][96];
    unsigned long long total, reserved, used, ecc, energy;
    int rc, major, minor, mode, persistence, mig, mig_next, mig_waits, instances;
    unsigned remap[4]; /* corrected, uncorrected, pending, failed */
    unsigned clock, clock_max, reasons, nvlinks, gpm;
    int recovery;
} Gpu;
typedef struct {
    int init, count, processes, xids, hang_gpu, fails, fail_code[8];
    char hang[64], fail[8][64], driver[64], claims[768];
    int cuda;
    Gpu gpus[GPUS_MAX];
    Process process[PROCESSES_MAX];
    int xid_gpu[XIDS_MAX], xid[XIDS_MAX], xid_instance[XIDS_MAX];
} World;
typedef struct { int gpu, instance; } Handle; /* instance -1: the GPU itself */

static Handle handles[GPUS_MAX][MIG_MAX + 1];
static int initialised;

static void gpu_fact(World *w, int i, const char *key, const char *value) {
    Gpu *g = &w->gpus[i];
    unsigned long long number = strtoull(value, NULL, 10);
    if (!strcmp(key, "uuid")) snprintf(g->uuid, sizeof g->uuid, "%s", value);
    else if (!strcmp(key, "name")) snprintf(g->name, sizeof g->name, "%s (mock)", value);
    else if (!strcmp(key, "total")) g->total = number;
    else if (!strcmp(key, "reserved")) g->reserved = number;
    else if (!strcmp(key, "used")) g->used = number;
    else if (!strcmp(key, "rc")) g->rc = (int)number;
    else if (!strcmp(key, "capability")) sscanf(value, "%d.%d", &g->major, &g->minor);
    else if (!strcmp(key, "mode")) g->mode = (int)number;
    else if (!strcmp(key, "persistence")) g->persistence = (int)number;
    else if (!strcmp(key, "mig")) g->mig = (int)number;
    else if (!strcmp(key, "mig_next")) { g->mig_next = (int)number; g->mig_waits = 1; }
    else if (!strcmp(key, "ecc")) g->ecc = number;
    else if (!strcmp(key, "energy")) g->energy = number;
    else if (!strcmp(key, "clocks")) sscanf(value, "%u %u %x", &g->clock, &g->clock_max, &g->reasons);
    else if (!strcmp(key, "nvlinks")) g->nvlinks = (unsigned)number;
    else if (!strcmp(key, "gpm")) g->gpm = (unsigned)number;
    else if (!strcmp(key, "recovery")) g->recovery = (int)number;
    else if (!strcmp(key, "remap"))
        sscanf(value, "%u %u %u %u", &g->remap[0], &g->remap[1], &g->remap[2], &g->remap[3]);
    else if (!strcmp(key, "instance") && g->instances < MIG_MAX) {
        sscanf(value, "%95s %95[^\n]", g->mig_uuid[g->instances], g->mig_name[g->instances]);
        g->instances++;
    }
}

/* Whether a process lives: a zombie has closed everything but its context in the real driver, not here. */
static int lives(unsigned pid) {
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    char text[512];
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    char *end = strrchr(text, ')');
    if (end) sscanf(end + 1, " %c", &state);
    return state != 'Z' && state != 'X';
}

static void add_claims(World *w) {
    DIR *folder = w->claims[0] ? opendir(w->claims) : NULL;
    for (struct dirent *each; folder && (each = readdir(folder));) {
        char uuid[96], path[1024], kind = 'C';
        unsigned pid;
        unsigned long long mib;
        if (sscanf(each->d_name, "%95[^.].%u.%llu", uuid, &pid, &mib) != 3 || !lives(pid)) continue;
        snprintf(path, sizeof path, "%s/%s", w->claims, each->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (fscanf(file, "%c", &kind) != 1) kind = 'C';
        fclose(file);
        for (int i = 0; i < w->count; i++)
            for (int at = -1; at < w->gpus[i].instances; at++) {
                const char *own = at < 0 ? w->gpus[i].uuid : w->gpus[i].mig_uuid[at];
                if (strcmp(own, uuid) || w->processes >= PROCESSES_MAX) continue;
                w->process[w->processes++] = (Process){pid, mib, kind, i, at};
                w->gpus[i].used += mib;
            }
    }
    if (folder) closedir(folder);
}

static const char *mode_file(int index) {
    static char path[1024];
    snprintf(path, sizeof path, "%s.mode-%d", getenv("COTENANT_MOCK_NVML"), index);
    return path;
}

static void add_modes(World *w) {
    for (int i = 0; i < w->count; i++) {
        FILE *file = fopen(mode_file(i), "r");
        if (!file) continue;
        if (fscanf(file, "%d", &w->gpus[i].mode) != 1) w->gpus[i].mode = 0;
        fclose(file);
    }
}

static World *look(void) {
    static World w;
    memset(&w, 0, sizeof w);
    w.hang_gpu = -1;
    w.cuda = 13020;
    snprintf(w.driver, sizeof w.driver, "580.0-mock");
    const char *path = getenv("COTENANT_MOCK_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) { w.init = 9; return &w; }
    char line[1024], key[64], value[256], kind;
    int i, number, instance;
    while (fgets(line, sizeof line, file)) {
        unsigned pid;
        unsigned long long used;
        if (sscanf(line, "init %d", &number) == 1) w.init = number;
        else if (sscanf(line, "driver %63s", w.driver) == 1) continue;
        else if (sscanf(line, "cuda %d", &number) == 1) w.cuda = number;
        else if (sscanf(line, "claims %767[^\n]", w.claims) == 1) continue;
        else if (sscanf(line, "fail %63s %d", key, &number) == 2) {
            if (w.fails >= 8) continue;
            snprintf(w.fail[w.fails], sizeof w.fail[0], "%s", key);
            w.fail_code[w.fails++] = number;
        } else if (sscanf(line, "hang %63s %d", key, &number) >= 1) {
            snprintf(w.hang, sizeof w.hang, "%s", key);
            w.hang_gpu = sscanf(line, "hang %*s %d", &number) == 1 ? number : -1;
        } else if (sscanf(line, "process %d %u %llu %c", &i, &pid, &used, &kind) == 4) {
            if (w.processes < PROCESSES_MAX) w.process[w.processes++] = (Process){pid, used, kind, i, -1};
        } else if (sscanf(line, "xid %d %d", &i, &number) == 2) {
            if (w.xids >= XIDS_MAX) continue;
            w.xid_instance[w.xids] = sscanf(line, "xid %*d %*d %d", &instance) == 1 ? instance : -1;
            w.xid_gpu[w.xids] = i;
            w.xid[w.xids++] = number;
        } else if (sscanf(line, "gpu %d %63s %255[^\n]", &i, key, value) == 3 && i >= 0 && i < GPUS_MAX) {
            if (i >= w.count) {
                Gpu plain = {.total = 81920, .reserved = 600, .used = 600, .major = 9, .persistence = 1, .recovery = -1};
                w.gpus[i] = plain;
                snprintf(w.gpus[i].name, sizeof plain.name, "GPU (mock)");
                w.count = i + 1;
            }
            gpu_fact(&w, i, key, value);
        }
    }
    fclose(file);
    add_claims(&w);
    add_modes(&w);
    return &w;
}

/* Before every call: hang or fail if the file says so, and find the GPU. */
static World *enter(const char *call, Handle *handle, Gpu **gpu, int *code) {
    World *w = look();
    while (!strcmp(w->hang, call) && (w->hang_gpu < 0 || !handle || w->hang_gpu == handle->gpu)) {
        struct timespec nap = {0, 20 * 1000 * 1000};
        nanosleep(&nap, NULL);
        w = look();
    }
    *code = OK;
    for (int i = 0; i < w->fails; i++)
        if (!strcmp(w->fail[i], call)) *code = w->fail_code[i];
    if (*code) return w;
    if (!initialised && strcmp(call, "nvmlInitWithFlags")) *code = UNINITIALIZED;
    else if (handle && handle->gpu >= w->count) *code = 15;
    else if (handle && w->gpus[handle->gpu].rc) *code = w->gpus[handle->gpu].rc;
    else if (handle && handle->instance >= w->gpus[handle->gpu].instances) *code = NOT_FOUND;
    if (handle && gpu) *gpu = &w->gpus[handle->gpu];
    return w;
}

#define ENTER(call, handle) \
    Gpu *gpu = NULL; \
    int code; \
    World *w = enter(call, (Handle *)(handle), &gpu, &code); \
    (void)w; (void)gpu; \
    if (code) return code
/* What a MIG instance does not answer: its GPU does. */
#define ENTER_GPU(call, handle) \
    ENTER(call, handle); \
    if (((Handle *)(handle))->instance >= 0) return UNSUPPORTED

/* --- The library -------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER("nvmlInitWithFlags", NULL);
    if (w->init) return w->init;
    initialised = 1;
    return OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { initialised = 0; return OK; }
const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "mock error %d", code);
    return text;
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER("nvmlSystemGetDriverVersion", NULL);
    snprintf(out, size, "%s", w->driver);
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER("nvmlDeviceGetCount_v2", NULL);
    *count = (unsigned)w->count;
    return OK;
}
static Handle *handle_of(int gpu, int instance) {
    Handle *h = &handles[gpu][instance + 1];
    h->gpu = gpu;
    h->instance = instance;
    return h;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (index >= GPUS_MAX) return INVALID;
    ENTER("nvmlDeviceGetHandleByIndex_v2", handle_of((int)index, -1));
    if ((int)index >= w->count) return INVALID;
    *out = handle_of((int)index, -1);
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    World *all = look();
    for (int i = 0; i < all->count; i++) {
        if (strcmp(all->gpus[i].uuid, uuid)) continue;
        ENTER("nvmlDeviceGetHandleByUUID", handle_of(i, -1));
        *out = handle_of(i, -1);
        return OK;
    }
    for (int i = 0; i < all->count; i++)
        for (int at = 0; at < all->gpus[i].instances; at++) {
            if (strcmp(all->gpus[i].mig_uuid[at], uuid)) continue;
            ENTER("nvmlDeviceGetHandleByUUID", handle_of(i, at));
            *out = handle_of(i, at);
            return OK;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(void *h, char *out, unsigned size) {
    ENTER("nvmlDeviceGetUUID", h);
    int instance = ((Handle *)h)->instance;
    snprintf(out, size, "%s", instance < 0 ? gpu->uuid : gpu->mig_uuid[instance]);
    return OK;
}
int nvmlDeviceGetName(void *h, char *out, unsigned size) {
    ENTER("nvmlDeviceGetName", h);
    int instance = ((Handle *)h)->instance;
    snprintf(out, size, "%s", instance < 0 ? gpu->name : gpu->mig_name[instance]);
    return OK;
}
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;
int nvmlDeviceGetPciInfo_v3(void *h, Pci *out) {
    ENTER("nvmlDeviceGetPciInfo_v3", h);
    memset(out, 0, sizeof *out);
    out->bus = (unsigned)((Handle *)h)->gpu + 1;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) {
    ENTER("nvmlDeviceGetCudaComputeCapability", h);
    *major = gpu->major;
    *minor = gpu->minor;
    return OK;
}
int nvmlDeviceGetComputeMode(void *h, unsigned *mode) {
    ENTER("nvmlDeviceGetComputeMode", h);
    *mode = (unsigned)gpu->mode;
    return OK;
}
int nvmlDeviceSetComputeMode(void *h, unsigned mode) {
    ENTER("nvmlDeviceSetComputeMode", h);
    FILE *file = fopen(mode_file(((Handle *)h)->gpu), "w");
    if (!file) return 4;
    fprintf(file, "%u\n", mode);
    fclose(file);
    return OK;
}
int nvmlDeviceGetPersistenceMode(void *h, unsigned *mode) {
    ENTER("nvmlDeviceGetPersistenceMode", h);
    *mode = (unsigned)gpu->persistence;
    return OK;
}

/* --- Memory and processes ----------------------------------------------------------------------- */

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } ProcessInfo2;
#ifdef V535
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; unsigned long long secret; } ProcessInfo;
#else
typedef ProcessInfo2 ProcessInfo;
#endif

int nvmlDeviceGetMemoryInfo(void *h, Memory *out) {
    ENTER("nvmlDeviceGetMemoryInfo", h);
    int at = ((Handle *)h)->instance;
    if (at >= 0) {
        out->total = MIG_TOTAL * MIB;
        out->used = MIG_RESERVED * MIB;
        for (int i = 0; i < w->processes; i++)
            if (w->process[i].gpu == ((Handle *)h)->gpu && w->process[i].instance == at)
                out->used += w->process[i].used_mib * MIB;
        out->free = out->total - out->used;
        return OK;
    }
    out->total = gpu->total * MIB;
    out->used = gpu->used * MIB;
    out->free = out->total - out->used;
    return OK;
}
static unsigned long long bytes(Process *p) { return p->used_mib == ~0ULL ? ~0ULL : p->used_mib * MIB; }
#define PROCESSES(NAME, RECORD) \
    static int NAME(World *w, Handle *h, const char *kinds, unsigned *count, RECORD *out) { \
        unsigned found = 0; \
        for (int i = 0; i < w->processes; i++) { \
            Process *p = &w->process[i]; \
            if (p->gpu != h->gpu || (h->instance >= 0 && p->instance != h->instance)) continue; \
            if (!strchr(kinds, p->kind)) continue; \
            if (out && found < *count) out[found] = (RECORD){.pid = p->pid, .used = bytes(p), .gi = ~0u, .ci = ~0u}; \
            found++; \
        } \
        int fits = found <= *count; \
        *count = found; \
        return fits ? OK : TOO_SMALL; \
    }
PROCESSES(processes, ProcessInfo)
#ifdef V535
PROCESSES(processes2, ProcessInfo2)
int nvmlDeviceGetComputeRunningProcesses_v2(void *h, unsigned *count, ProcessInfo2 *out) {
    ENTER("nvmlDeviceGetComputeRunningProcesses_v2", h);
    return processes2(w, h, "CM", count, out);
}
#endif
#ifdef OLD_DRIVER
#define nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetComputeRunningProcesses_v2
#define nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses_v2
#endif
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *count, ProcessInfo *out) {
    ENTER("nvmlDeviceGetComputeRunningProcesses_v3", h);
    return processes(w, h, "CM", count, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *count, ProcessInfo *out) {
    ENTER("nvmlDeviceGetGraphicsRunningProcesses_v3", h);
    return processes(w, h, "G", count, out);
}

/* --- What drivers have learned over the years ---------------------------------------------------- */

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(void *h, Memory2 *out) {
    ENTER_GPU("nvmlDeviceGetMemoryInfo_v2", h);
    out->total = gpu->total * MIB;
    out->reserved = gpu->reserved * MIB;
    out->used = (gpu->used > gpu->reserved ? gpu->used - gpu->reserved : 0) * MIB;
    out->free = out->total - out->reserved - out->used;
    return OK;
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *h, unsigned *count, ProcessInfo *out) {
    ENTER("nvmlDeviceGetMPSComputeRunningProcesses_v3", h);
    return processes(w, h, "M", count, out);
}
int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *out) {
    ENTER_GPU("nvmlDeviceGetTotalEnergyConsumption", h);
    *out = gpu->energy;
    return OK;
}
int nvmlDeviceGetTotalEccErrors(void *h, unsigned kind, unsigned counter, unsigned long long *out) {
    ENTER_GPU("nvmlDeviceGetTotalEccErrors", h);
    (void)counter;
    *out = kind == 1 ? gpu->ecc : 0;
    return OK;
}
int nvmlDeviceGetRemappedRows(void *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    ENTER_GPU("nvmlDeviceGetRemappedRows", h);
    *corrected = gpu->remap[0];
    *uncorrected = gpu->remap[1];
    *pending = gpu->remap[2];
    *failed = gpu->remap[3];
    return OK;
}
typedef struct {
    unsigned field, scope;
    long long at, latency;
    int type, rc;
    union { unsigned u; unsigned long long ull; double d; } value;
} FieldValue;
int nvmlDeviceGetFieldValues(void *h, int count, FieldValue *out) {
    ENTER("nvmlDeviceGetFieldValues", h);
    for (int i = 0; i < count; i++) {
        out[i].rc = out[i].field == 230 && gpu->recovery >= 0 ? OK : UNSUPPORTED;
        out[i].type = 1; /* unsigned int */
        out[i].value.ull = out[i].rc ? 0 : (unsigned)gpu->recovery;
    }
    return OK;
}
int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *next) {
    ENTER("nvmlDeviceGetMigMode", h);
    *now = (unsigned)gpu->mig;
    *next = (unsigned)(gpu->mig_waits ? gpu->mig_next : gpu->mig);
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *out) {
    ENTER("nvmlDeviceGetMaxMigDeviceCount", h);
    *out = gpu->mig ? MIG_MAX : 0;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **out) {
    ENTER("nvmlDeviceGetMigDeviceHandleByIndex", h);
    if ((int)index >= gpu->instances) return NOT_FOUND;
    *out = handle_of(((Handle *)h)->gpu, (int)index);
    return OK;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *h, void **out) {
    ENTER("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", h);
    *out = handle_of(((Handle *)h)->gpu, -1);
    return OK;
}
int nvmlDeviceGetGpuInstanceId(void *h, unsigned *out) {
    ENTER("nvmlDeviceGetGpuInstanceId", h);
    *out = (unsigned)((Handle *)h)->instance + 1;
    return OK;
}
int nvmlGpmQueryDeviceSupport(void *h, unsigned *out) {
    ENTER("nvmlGpmQueryDeviceSupport", h);
    out[1] = gpu->gpm; /* {version, isSupportedDevice} */
    return OK;
}
int nvmlGpmSampleAlloc(void **out) { *out = malloc(1); return OK; }
int nvmlGpmSampleFree(void *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(void *h, void *sample) {
    ENTER("nvmlGpmSampleGet", h);
    (void)sample;
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER("nvmlSystemGetCudaDriverVersion_v2", NULL);
    *out = w->cuda;
    return w->cuda ? OK : UNSUPPORTED;
}
int nvmlDeviceGetEccMode(void *h, unsigned *now, unsigned *next) {
    ENTER("nvmlDeviceGetEccMode", h);
    *now = *next = 1;
    return OK;
}
int nvmlDeviceGetClockInfo(void *h, unsigned type, unsigned *out) {
    ENTER("nvmlDeviceGetClockInfo", h);
    *out = gpu->clock;
    return type == 1 ? OK : INVALID;
}
int nvmlDeviceGetMaxClockInfo(void *h, unsigned type, unsigned *out) {
    ENTER("nvmlDeviceGetMaxClockInfo", h);
    *out = gpu->clock_max;
    return type == 1 ? OK : INVALID;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *h, unsigned long long *out) {
    ENTER("nvmlDeviceGetCurrentClocksEventReasons", h);
    *out = gpu->reasons;
    return OK;
}
int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *out) {
    ENTER("nvmlDeviceGetNvLinkState", h);
    *out = link < gpu->nvlinks;
    return link < 18 ? OK : INVALID;
}
int nvmlDeviceGetP2PStatus(void *h, void *other, unsigned what, unsigned *out) {
    ENTER("nvmlDeviceGetP2PStatus", h);
    (void)other;
    *out = what == 2 && !gpu->nvlinks; /* 0: it works. */
    return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(void *h, void *other, unsigned *out) {
    ENTER("nvmlDeviceGetTopologyCommonAncestor", h);
    (void)other;
    *out = 50;
    return OK;
}
#endif

/* --- Events: what is added to the file after a set was made -------------------------------------- */

typedef struct { unsigned mask; int told; } EventSet;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } EventData;

#ifndef OLD_DRIVER
int nvmlEventSetCreate(void **out) {
    ENTER("nvmlEventSetCreate", NULL);
    EventSet *set = calloc(1, sizeof *set);
    set->told = w->xids;
    *out = set;
    return OK;
}
int nvmlEventSetFree(void *set) { free(set); return OK; }
int nvmlDeviceGetSupportedEventTypes(void *h, unsigned long long *types) {
    ENTER("nvmlDeviceGetSupportedEventTypes", h);
    *types = XID_EVENT;
    return OK;
}
int nvmlDeviceRegisterEvents(void *h, unsigned long long types, void *set) {
    ENTER_GPU("nvmlDeviceRegisterEvents", h);
    if (types & XID_EVENT) ((EventSet *)set)->mask |= 1u << ((Handle *)h)->gpu;
    return OK;
}
int nvmlEventSetWait_v2(void *of, EventData *out, unsigned timeout_ms) {
    EventSet *set = of;
    for (unsigned waited_ms = 0;; waited_ms += 10) {
        ENTER("nvmlEventSetWait_v2", NULL);
        while (set->told < w->xids) {
            int at = set->told++, index = w->xid_gpu[at];
            if (!(set->mask & 1u << index)) continue;
            unsigned gi = (unsigned)w->xid_instance[at];
            *out = (EventData){handle_of(index, -1), XID_EVENT, (unsigned long long)w->xid[at], gi, gi};
            return OK;
        }
        if (waited_ms >= timeout_ms) return TIMED_OUT;
        struct timespec nap = {0, 10 * 1000 * 1000};
        nanosleep(&nap, NULL);
    }
}
#endif
