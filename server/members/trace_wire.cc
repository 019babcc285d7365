#include "server/members/trace_wire.h"

#include <algorithm>

#include "proto/transport.pb.h"

namespace tryst {
namespace {

WaitsFor FromName(absl::string_view name) {
  for (size_t i = 0; i < kWaitsForCount; ++i) {
    if (WaitsForName(static_cast<WaitsFor>(i)) == name) return static_cast<WaitsFor>(i);
  }
  return WaitsFor::kNothing;
}

}  // namespace

void DumpToProto(const TraceDump& dump, rpc::TraceResponse* out) {
  out->set_worker(dump.worker);
  out->set_incarnation(dump.incarnation);
  out->set_steady_ns(dump.now_ns);
  for (const TraceDump::Track& track : dump.tracks) {
    rpc::TraceTrackView* view = out->add_tracks();
    view->set_serves(track.role == TraceRole::kServe);
    view->set_peer(track.peer);
    view->set_path(track.path);
  }
  for (const TraceRecord& record : dump.records) {
    rpc::TraceOp* op = out->add_ops();
    op->set_id(record.id);
    op->set_step_id(record.step);
    op->set_key(record.key);
    op->set_track(record.track);
    op->set_began_ns(record.span.began_ns());
    op->set_end_ns(record.end_ns);
    op->set_bytes(record.bytes);
    op->set_code(static_cast<int32_t>(record.code));
    for (size_t i = 0; i < record.span.count(); ++i) {
      op->add_waits_for(std::string(WaitsForName(record.span.stamp(i).what)));
      op->add_at_ns(record.span.stamp(i).at_ns);
    }
    op->set_lost(record.span.lost());
  }
  out->set_ended(dump.counts.ended);
  out->set_kept(dump.counts.kept);
  out->set_overwritten(dump.counts.overwritten);
  out->set_passed_over(dump.counts.passed_over);
}

absl::StatusOr<TraceDump> DumpFromProto(const rpc::TraceResponse& in) {
  TraceDump dump;
  dump.worker = in.worker();
  dump.incarnation = in.incarnation();
  dump.now_ns = in.steady_ns();
  for (const rpc::TraceTrackView& view : in.tracks()) {
    dump.tracks.push_back(
        {view.serves() ? TraceRole::kServe : TraceRole::kFetch, view.peer(), view.path()});
  }
  for (const rpc::TraceOp& op : in.ops()) {
    if (op.track() >= dump.tracks.size() || op.waits_for_size() != op.at_ns_size()) {
      return absl::DataLossError("the worker's answer with its trace is malformed");
    }
    TraceRecord record;
    record.id = op.id();
    record.step = op.step_id();
    record.key = op.key();
    record.track = static_cast<uint16_t>(op.track());
    record.span.Begin(op.at_ns_size() > 0 ? FromName(op.waits_for(0)) : WaitsFor::kNothing,
                      op.began_ns());
    for (int i = 1; i < op.at_ns_size(); ++i) {
      record.span.Enter(FromName(op.waits_for(i)), op.at_ns(i));
    }
    record.span.set_lost(static_cast<uint16_t>(op.lost()));
    record.span.id = record.id;
    record.end_ns = op.end_ns();
    record.bytes = op.bytes();
    record.code = static_cast<absl::StatusCode>(op.code());
    dump.records.push_back(std::move(record));
  }
  dump.counts.ended = in.ended();
  dump.counts.kept = in.kept();
  dump.counts.overwritten = in.overwritten();
  dump.counts.passed_over = in.passed_over();
  return dump;
}

}  // namespace tryst
