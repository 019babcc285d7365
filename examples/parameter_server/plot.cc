#include "examples/parameter_server/plot.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tryst {
namespace {

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

void AddData(const std::string& name, const Course::Curve& curve, std::string* script) {
  absl::StrAppend(script, "$", name, " << EOD\n");
  for (const auto& [x, y] : curve) absl::StrAppend(script, x, " ", y, "\n");
  absl::StrAppend(script, "EOD\n");
}

void AddEvents(const Course& course, bool with_text, std::string* script) {
  for (const auto& [x, text] : course.events) {
    absl::StrAppend(script, "set arrow from first ", x, ", graph 0 to first ", x,
                    ", graph 1 nohead dashtype 3 linecolor rgb '#888888'\n");
    if (!with_text) continue;
    const double aside = absl::StartsWith(text, "we start") ? 0.8 : -0.8;
    absl::StrAppend(script, "set label ", Quoted(text), " at first ", x,
                    ", graph 0.97 rotate by -90 left offset character ", aside, ", 0 ",
                    "textcolor rgb '#555555' font ',10'\n");
  }
}

std::string Script(const Course& course, const std::string& title, const std::string& path) {
  std::string script;
  AddData("held_out", course.held_out, &script);
  AddData("mib", course.mib_rate, &script);
  for (size_t i = 0; i < course.losses.size(); ++i) {
    AddData(absl::StrCat("loss", i), course.losses[i], &script);
  }
  absl::StrAppend(&script, "set terminal svg size 900,640 background rgb 'white'\n",  //
                  "set output ", Quoted(path), "\n",                                  //
                  "set multiplot\nset lmargin 11\nset rmargin 4\nset xtics out nomirror\n",
                  "set grid linecolor rgb '#dddddd'\n",
                  "set xrange [0:", course.mib_rate.back().first, "]\n");
  absl::StrAppend(&script, "set title ", Quoted(title), "\n",
                  "set origin 0, 0.37\nset size 1, 0.63\nset ylabel 'loss, nats a word'\n",
                  "set key top right\n");
  AddEvents(course, /*with_text=*/true, &script);
  absl::StrAppend(&script, "plot ");
  for (size_t i = 0; i < course.losses.size(); ++i) {
    if (course.losses[i].empty()) continue;
    absl::StrAppend(&script, "$loss", i, " using 1:2 with points pointtype 7 pointsize 0.35 ",
                    "title 'worker ", i, ", own batches', ");
  }
  absl::StrAppend(&script, "$held_out using 1:2 with linespoints linewidth 2 pointtype 6 ",
                  "pointsize 0.6 linecolor rgb 'black' title 'held out'\n");
  absl::StrAppend(&script, "unset title\nunset label\nunset arrow\n",
                  "set origin 0, 0\nset size 1, 0.38\nset xlabel 'seconds'\n",
                  "set ylabel 'MiB/s moved'\nset yrange [0:*]\n");
  AddEvents(course, /*with_text=*/false, &script);
  absl::StrAppend(&script, "plot $mib using 1:2 with lines linewidth 2 notitle\nunset multiplot\n");
  return script;
}

}  // namespace

absl::Status Plot(const Course& course, const std::string& title, const std::string& path) {
  if (course.held_out.empty() || course.mib_rate.empty()) {
    return absl::UnavailableError("nothing to plot");
  }
  FILE* gnuplot = popen("gnuplot", "w");
  if (gnuplot == nullptr) return absl::UnavailableError("cannot start gnuplot");
  const std::string script = Script(course, title, path);
  std::fwrite(script.data(), 1, script.size(), gnuplot);
  if (pclose(gnuplot) != 0) return absl::UnavailableError("gnuplot failed, or is not installed");
  return absl::OkStatus();
}

}  // namespace tryst
