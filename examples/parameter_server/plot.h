#ifndef TRYST_EXAMPLES_PARAMETER_SERVER_PLOT_H_
#define TRYST_EXAMPLES_PARAMETER_SERVER_PLOT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tryst {

// How a run went, over the seconds since it started.
struct Course {
  using Curve = std::vector<std::pair<double, double>>;
  std::vector<Curve> losses;  // Each worker's, over its own batches.
  Curve held_out;
  Curve examples_rate;  // Examples a second, of all workers together.
  Curve mib_rate;
  std::vector<std::pair<double, std::string>> events;
};

// Draws an SVG with gnuplot. kUnavailable: there is no gnuplot, or it failed.
absl::Status Plot(const Course& course, const std::string& title, const std::string& path);

}  // namespace tryst

#endif  // TRYST_EXAMPLES_PARAMETER_SERVER_PLOT_H_
