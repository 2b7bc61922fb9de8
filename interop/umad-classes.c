/* Preloaded before libumad2sim into the InfiniBand tools. libumad2sim 0.10 gives a reply to the agent that registered the
 * reply's management class, and falls over where there is none; the kernel's ib_umad gives it to the agent that asked.
 * ibdiagnet (ibis) registers class 0x01 only and asks by directed route, class 0x81, with it, which is right on the kernel.
 * So whoever registers 0x01 here has 0x81 too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef int (*umad_register_t)(int, int, int, uint8_t, long *);

int umad_register(int fd, int mgmt_class, int version, uint8_t rmpp_version, long *method_mask)
{
	umad_register_t next = (umad_register_t)dlsym(RTLD_NEXT, "umad_register");
	int id = next(fd, mgmt_class, version, rmpp_version, method_mask);

	if (mgmt_class == 0x01 && id >= 0)
		next(fd, 0x81, version, rmpp_version, NULL);
	return id;
}
