#ifndef TRYST_SERVER_DOCTOR_LIBRARIES_H_
#define TRYST_SERVER_DOCTOR_LIBRARIES_H_

#include <string>
#include <vector>

#include "server/doctor/host.h"

namespace tryst {

// The different files that a shared library's name may lead to: LD_LIBRARY_PATH's folders,
// then the usual ones. Two links to one file count once.
std::vector<std::string> LibraryFiles(const Host& host, const std::string& name);

}  // namespace tryst

#endif  // TRYST_SERVER_DOCTOR_LIBRARIES_H_
