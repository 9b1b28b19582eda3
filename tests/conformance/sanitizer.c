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
	return "die_after_fork=0";
}
#endif
typedef int nothing_else; /* an empty file is none */
