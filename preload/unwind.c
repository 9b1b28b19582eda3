/* SPDX-License-Identifier: MIT */
/*
 * What the compiler has a cancelled thread call on its way through our frames (attribute cleanup). The functions are libgcc's,
 * and whoever unwinds has it loaded: libc does, before the first cancellation. A library that depends on libc alone passes on
 * to that copy, as libc itself does; a second, linked copy would not know the first one's state.
 */
#include <dlfcn.h>
#include <stdlib.h>

/* As <unwind.h> has them, but not visible to the program. */
struct exception;
struct context;
typedef int personality_function(int version, int actions, unsigned long class, struct exception *exception,
				 struct context *context);
__attribute__((visibility("hidden"))) void _Unwind_Resume(struct exception *exception);
__attribute__((visibility("hidden"))) personality_function __gcc_personality_v0;

static void *from_libgcc(const char *name)
{
	void *libgcc = dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_NOLOAD);
	void *function = libgcc ? dlsym(libgcc, name) : NULL;

	if (!function)
		abort(); /* somebody unwinds without it: there is no way back to the program */
	return function;
}

void _Unwind_Resume(struct exception *exception)
{
	((void (*)(struct exception *))from_libgcc("_Unwind_Resume"))(exception);
	__builtin_unreachable();
}

int __gcc_personality_v0(int version, int actions, unsigned long class, struct exception *exception,
			 struct context *context)
{
	return ((personality_function *)from_libgcc("__gcc_personality_v0"))(version, actions, class, exception,
									     context);
}
