/* Preloaded, it makes every library of a process believe in $BELIEVED_CPUS CPUs (64 if unset), as on a big host:
   sysconf and get_nprocs (os.cpu_count, std::thread) and the affinity mask (libgomp, OpenBLAS) answer with it.
   Quotas of cgroups stay what they are.
   cc -shared -fPIC -O1 -o believed_cpus.so believed_cpus.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int believed(void)
{
    const char *text = getenv("BELIEVED_CPUS");
    int count = text ? atoi(text) : 0;
    return count > 0 ? count : 64;
}

int get_nprocs(void) { return believed(); }
int get_nprocs_conf(void) { return believed(); }

long sysconf(int name)
{
    static long (*real)(int);
    if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF)
        return believed();
    if (!real)
        real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return real(name);
}

static int fill(size_t bytes, void *mask)
{
    unsigned char *byte = mask;
    int count = believed();
    if (bytes * 8 < (size_t)count)
        return EINVAL; /* the caller's mask is too small: it tries a larger one */
    memset(mask, 0, bytes);
    for (int cpu = 0; cpu < count; cpu++)
        byte[cpu / 8] |= (unsigned char)(1u << (cpu % 8));
    return 0;
}

int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *mask)
{
    int error = fill(bytes, mask);
    (void)pid;
    if (error)
        errno = error;
    return error ? -1 : 0;
}

int pthread_getaffinity_np(pthread_t thread, size_t bytes, cpu_set_t *mask)
{
    (void)thread;
    return fill(bytes, mask);
}

int sched_setaffinity(pid_t pid, size_t bytes, const cpu_set_t *mask)
{
    (void)pid, (void)bytes, (void)mask;
    return 0;
}
