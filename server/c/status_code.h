#ifndef TRYST_SERVER_C_STATUS_CODE_H_
#define TRYST_SERVER_C_STATUS_CODE_H_

#include <string>

#include "server/c/tryst.h"

// The code of what a call returned, which is freed; for tests.
inline tryst_code Code(tryst_status* status, std::string* message = nullptr) {
  const tryst_code code = tryst_status_code(status);
  if (message != nullptr) *message = tryst_status_message(status);
  tryst_status_free(status);
  return code;
}

#endif  // TRYST_SERVER_C_STATUS_CODE_H_
