/* SPDX-License-Identifier: MIT */
/* The sanitizers' settings for the ends: they fork with threads, and exit without freeing what they have. */
#if defined(__SANITIZE_ADDRESS__)
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
	return "detect_leaks=0";
}
#elif defined(__SANITIZE_THREAD__)
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
	return "die_after_fork=0:atexit_sleep_ms=0";
}

/* libzc.so's own locks are not seen there (docs/decisions/0008): what it has copied must not be either. */
const char *__tsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void)
{
	return "race:libzc.so\n";
}
#endif
typedef int nothing_else; /* an empty file is none */
