"""A client in Python: its code comes from the proto contract."""
import sys

import grpc

from lifecycle.operator.v1 import workflow_pb2, workflow_pb2_grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    api = workflow_pb2_grpc.WorkflowServiceStub(channel)
    entity = api.GetEntity(workflow_pb2.GetEntityRequest(type="drone-survey", id="m-00001"), timeout=60)
    moved = api.Transition(workflow_pb2.TransitionRequest(
        type="drone-survey", id="m-00001", phase="flying", note="by Python", if_match=entity.etag,
    ), timeout=60)
    print("from:", getattr(moved, "from"))
    try:
        api.Transition(workflow_pb2.TransitionRequest(
            type="drone-survey", id="m-00001", phase="landing", if_match=entity.etag,
        ), timeout=60)
    except grpc.RpcError as e:
        print("stale:", e.code().name)
    page = api.ListEntities(workflow_pb2.ListEntitiesRequest(type="drone-survey", phase="flying"), timeout=60)
    print("listed:", ",".join(e.id for e in page.entities), "was:", entity.phase)
