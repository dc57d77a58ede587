//! System calls by name: what sandboxes refuse, and all that a process needs that reads and decodes. It makes none.

/// What a process that only reads files and decodes them can need: memory, threads, clocks, files to read, its socket, its end. A profiler or a
/// preloaded library that needs more does without, or `sandbox` is `"off"`. Which files it may open, which threads start and which signals send,
/// conditions say.
pub(super) const ALLOWED_TO_DECODERS: &[i64] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_get_mempolicy,
    // Threads and what they wait for.
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getcpu,
    libc::SYS_prctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
    // Signals of its own.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time and chance.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
    // Files. What may be opened, Landlock says; nothing grows (`RLIMIT_FSIZE`). Not `openat2`: its flags lie in memory, which no filter sees.
    libc::SYS_close,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_flock,
    libc::SYS_getcwd,
    libc::SYS_fcntl,
    libc::SYS_dup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    // Its socket and its standard error.
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    // What it is and may take.
    libc::SYS_uname,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    // Its end.
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// What a process needs besides that reads objects of stores: sockets of a client, and what a runtime of tasks waits for. It listens nowhere
/// and takes no port of its choice. Which sockets it may make, and which requests to them, conditions say.
pub(super) const ALLOWED_TO_CLIENTS: &[i64] = &[
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // The C library asks servers of names by it.
    libc::SYS_sendmmsg,
    // A runtime wakes itself through it.
    libc::SYS_socketpair,
    libc::SYS_eventfd2,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

/// Of a client: whether calls on a socket wait, and how much is there to read.
pub(super) const REQUESTS_OF_CLIENTS: [u64; 2] = [libc::FIONBIO, libc::FIONREAD];

/// What no sandbox lets through, but for `bind` and `listen` of what drives a GPU: new processes and programs, other processes, sockets that others may reach, kernel interfaces that go round a filter or that have often
/// been a way out; modes, owners and times of files, which Landlock does not govern; priorities. What a model needs is memory, threads, clocks and files that are open already or allowed.
pub(super) const FORBIDDEN: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
    libc::SYS_io_uring_setup,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_personality,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_shmctl,
    libc::SYS_shmdt,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_unlink,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_mount_setattr,
    libc::SYS_fsconfig,
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_utimensat,
    libc::SYS_setpriority,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_ioprio_set,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    FCHMODAT2,
    QUOTACTL_FD,
    PROCESS_MRELEASE,
    SETXATTRAT,
    REMOVEXATTRAT,
    OPEN_TREE_ATTR,
    FILE_SETATTR,
];

// Numbers that are the same on all processors, and that `libc` does not name everywhere.
const FCHMODAT2: i64 = 452;
const QUOTACTL_FD: i64 = 443;
const PROCESS_MRELEASE: i64 = 448;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const OPEN_TREE_ATTR: i64 = 467;
const FILE_SETATTR: i64 = 469;

/// The newest call that these lists were written for. A sandbox refuses every number above it, and so all calls of the x32 interface, whose
/// numbers begin at 2^30.
pub(super) const NEWEST: i64 = FILE_SETATTR;

/// Commands of `fcntl` that choose the process and the signal which the kernel sends for a descriptor, and a lease, for which others that open the file
/// wait.
pub(super) const FORBIDDEN_FCNTLS: [u64; 5] =
    [libc::F_SETOWN as u64, F_SETSIG, F_SETOWN_EX, libc::F_SETLEASE as u64, libc::F_NOTIFY as u64];
const F_SETSIG: u64 = 10;
const F_SETOWN_EX: u64 = 15;

/// All requests of a worker without a GPU: whether a descriptor is a terminal, how much is there to read, whether calls on it wait.
pub(super) const REQUESTS_OF_WORKERS: [u64; 7] = [
    libc::FIONBIO,
    libc::FIONREAD,
    libc::FIOCLEX,
    libc::FIONCLEX,
    libc::TCGETS,
    libc::TCGETS2,
    libc::TIOCGWINSZ,
];

/// What no worker of a GPU may request, whose driver needs any other: flags, versions, encryption and seals of files, which Landlock does not
/// govern; typing for the user of a terminal; signals for a descriptor.
pub(super) const FORBIDDEN_REQUESTS: [u64; 11] = [
    0x4008_6602, // FS_IOC_SETFLAGS
    0x4004_6602, // FS_IOC32_SETFLAGS
    0x4008_7602, // FS_IOC_SETVERSION
    0x4004_7602, // FS_IOC32_SETVERSION
    0x401c_5820, // FS_IOC_FSSETXATTR
    0x800c_6613, // FS_IOC_SET_ENCRYPTION_POLICY
    0x4080_6685, // FS_IOC_ENABLE_VERITY
    0x5412,      // TIOCSTI
    0x541c,      // TIOCLINUX
    0x8901,      // FIOSETOWN
    0x8902,      // SIOCSPGRP
];
