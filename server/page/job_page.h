#ifndef TRYST_SERVER_PAGE_JOB_PAGE_H_
#define TRYST_SERVER_PAGE_JOB_PAGE_H_

#include "absl/strings/string_view.h"
#include "server/cli/command_line.h"

namespace tryst {

// `tryst page`: serves a view of the whole job until it is stopped.
int RunPage(const CommandLine& line);

// The page for people: it asks /job.json every two seconds and draws the answers. It loads nothing
// from elsewhere.
absl::string_view JobHtml();

}  // namespace tryst

#endif  // TRYST_SERVER_PAGE_JOB_PAGE_H_
