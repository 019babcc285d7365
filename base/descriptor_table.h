#ifndef TRYST_BASE_DESCRIPTOR_TABLE_H_
#define TRYST_BASE_DESCRIPTOR_TABLE_H_

namespace tryst {

// Makes room for `count` descriptors in the process's table, or for as many as its limit allows.
// The kernel enlarges that table when a descriptor is the 65th, 129th, 257th and so on, and if the
// process has several threads then, whichever of them opened the descriptor waits until every
// processor has been seen out of the kernel, which takes 5 to 30 ms. Call it before there are
// threads.
void EnlargeDescriptorTable(int count);

}  // namespace tryst

#endif  // TRYST_BASE_DESCRIPTOR_TABLE_H_
