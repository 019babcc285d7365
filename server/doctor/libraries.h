#ifndef TRYST_SERVER_DOCTOR_LIBRARIES_H_
#define TRYST_SERVER_DOCTOR_LIBRARIES_H_

#include <string>
#include <vector>

#include "server/doctor/host.h"

namespace tryst {

// The files that a shared library's name may stand for, in the folders of LD_LIBRARY_PATH and then
// in the usual ones. Two links to one file count once.
std::vector<std::string> LibraryFiles(const Host& host, const std::string& name);

}  // namespace tryst

#endif  // TRYST_SERVER_DOCTOR_LIBRARIES_H_
