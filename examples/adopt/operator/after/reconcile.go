package main

import (
	"context"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// labeller writes the number of a ReplicaSet's ready pods on it.
type labeller struct{ client.Client }

func (l *labeller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	set := new(appsv1.ReplicaSet)
	if err := l.Get(ctx, req.NamespacedName, set); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	ready := strconv.Itoa(int(set.Status.ReadyReplicas))
	if set.Labels["example.com/ready"] == ready {
		return ctrl.Result{}, nil
	}
	before := client.MergeFrom(set.DeepCopy())
	if set.Labels == nil {
		set.Labels = map[string]string{}
	}
	set.Labels["example.com/ready"] = ready
	return ctrl.Result{}, l.Patch(ctx, set, before)
}

const seen = "example.com/seen"

// mark annotates pods, and refuses a pod that lost the annotation.
type mark struct{}

func (mark) Default(_ context.Context, pod *corev1.Pod) error {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[seen] = "true"
	return nil
}

func (mark) ValidateCreate(_ context.Context, pod *corev1.Pod) (admission.Warnings, error) {
	if pod.Annotations[seen] != "true" {
		return nil, fmt.Errorf("annotation %s is missing", seen)
	}
	return nil, nil
}

func (m mark) ValidateUpdate(ctx context.Context, _, pod *corev1.Pod) (admission.Warnings, error) {
	return m.ValidateCreate(ctx, pod)
}

func (mark) ValidateDelete(context.Context, *corev1.Pod) (admission.Warnings, error) { return nil, nil }
